// Package critest is a stateful in-memory container runtime, and the contract suite that it shares
// with a real containerd.
//
// Owns: Runtime (the fake: a real gRPC server over an in-memory connection), Program (what a
// container does), Fault (an injected failure), RunContract (what both runtimes must do).
// Reads: the requests of its clients, the clock (which is virtual in a testing/synctest bubble).
// Never: starts a process, opens a socket, holds a lock while it waits; writes a file only below
// the directory given to [WithLogs].
//
// The fake responds as containerd v2 does. It enforces the contract of CRI (state machine of
// sandboxes and containers, names, idempotent stop and remove, NotFound for unknown IDs) and
// reproduces containerd's peculiarities, because an agent that was only tested against an ideal
// runtime fails on the real one:
//
//  1. Events are published synchronously through a channel of [EventBacklog] per subscriber. A subscriber that does not read blocks
//     RunPodSandbox, CreateContainer, StartContainer, RemoveContainer and RemovePodSandbox of all clients; exits are still detected,
//     StopContainer, StopPodSandbox, statuses and lists still respond. Closing the stream unblocks all.
//  2. A StartContainer that fails moves the container to EXITED, exit code 128, reason StartError, without an event. So does one in
//     a sandbox that is not ready.
//  3. An exit while the runtime is down yields no event after its restart; only a list shows it, with exit code 255 and reason
//     Unknown whatever the real code was, and the time of the restart as finish time.
//  4. Without a subscriber events are buffered for [EventRetention] and replayed to the next one.
//  5. A closed stream is detected when the next event is sent into it: that event is lost if there is no other subscriber. (containerd
//     loses one event or several, with even chances for each further one; the fake always one, more with [Runtime.LoseEvents].)
//  6. Sandbox events use the container event types with the sandbox's ID: RunPodSandbox publishes CREATED and STARTED of the sandbox.
//  7. Events are published before the call that caused them returns.
//  8. Every event carries the pod's full status: the sandbox and all its containers.
//  9. A stopped sandbox is NOTREADY and has no IP, but the STOPPED event of the stop still contains the IP.
//  10. A sandbox whose process died (rather than being stopped) is NOTREADY and keeps its IP; its containers keep running, except
//     those in its process namespace, which is the default of NamespaceOption.
//  11. A cancelled RunPodSandbox or CreateContainer keeps its name reserved for [NameReservation]: the next call with that name is
//     rejected with FailedPrecondition, `failed to reserve sandbox name "…": name "…" is reserved for "…"`.
//  12. A call that the client cancelled still waits for its event to be published, and its work is done.
//  13. StopContainer of a container that was never started succeeds and leaves it CREATED.
//  14. StopContainer that the client cancels leaves the container running: it is not killed at the end of the grace period.
//  15. RemoveContainer of a running container kills it; RemovePodSandbox of a ready sandbox stops it and removes its containers.
//  16. ImageStatus of an unknown image is a response without an image, not an error. ListImages ignores its filter.
//  17. A container that exits at once may have a finish time before its start time.
//  18. The status of a container names its image by tag and has as ImageRef its digest, or its ID if the image was loaded and
//     never pulled; lists name the image as the creator did and have its ID as ImageRef. In a list of statistics, containers that
//     are not running have neither CPU nor memory; single requests for them are an error.
//  19. Status has conditions that are false and irrelevant to an agent (ContainerdHasNoDeprecationWarnings).
//  20. Streamed lists (StreamContainers and the like) are Unimplemented; [WithStreamedLists] supports those of sandboxes and
//     containers.
//  21. StopContainer with a timeout fails at once, and sends nothing, if the stop signal of the image is invalid ([Program.NoStopSignal]); without one it kills.
//  22. The task service, at the same socket, sends a container's process any signal; for an exited one it returns NotFound. [WithoutTasks] leaves it out.
//
// Unlike in containerd, these are Unimplemented here: the streaming endpoints Exec, Attach and
// PortForward, checkpoints, statistics and metrics of pod sandboxes. ContainerStats and
// ListContainerStats return plausible constants, ImageFsInfo the sum of the images. IDs must be
// given in full. [WithoutEvents] makes a runtime without events.
package critest
