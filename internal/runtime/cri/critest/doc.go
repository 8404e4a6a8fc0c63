// Package critest is a stateful container runtime that lives in memory, and the contract suite that
// it shares with a real containerd.
//
// Owns: Runtime (the fake: a real gRPC server over an in-memory connection), Program (what a
// container does), Fault (what goes wrong), RunContract (what both runtimes must do).
// Reads: the requests of its clients, the clock (which is virtual in a testing/synctest bubble).
// Never: starts a process, opens a socket, holds a lock while it waits; writes a file only below
// the folder given to [WithLogs].
//
// The fake answers as containerd v2 does. It enforces the contract of CRI (state machine of
// sandboxes and containers, names, idempotent stop and remove, NotFound for unknown ids) and it has
// containerd's peculiarities, because an agent that was only tested on a polite runtime fails on
// the real one:
//
//  1. Events are published synchronously through a channel of [EventBacklog] per subscriber. A subscriber that does not read blocks
//     RunPodSandbox, CreateContainer, StartContainer, RemoveContainer and RemovePodSandbox for everybody; exits are still seen,
//     StopContainer, StopPodSandbox, statuses and lists still answer. Closing the stream releases all.
//  2. A StartContainer that fails moves the container to EXITED, exit code 128, reason StartError, without an event. So does one in
//     a sandbox that is not ready.
//  3. An exit while the runtime is down gives no event when it is back; only a list shows it, with exit code 255 and reason Unknown
//     whatever the real code was, and the time of the runtime's return as finish time.
//  4. Without a subscriber events are kept for [EventRetention] and replayed to the next one.
//  5. A stream that ended is noticed when the next event is sent into it: that event is lost if nobody else listens. (containerd
//     loses one event or several, with even chances for each further one; the fake always one, more with [Runtime.LoseEvents].)
//  6. Sandbox events use the container event types with the sandbox's id: RunPodSandbox publishes CREATED and STARTED of the sandbox.
//  7. Events are published before the call that caused them answers.
//  8. Every event carries the pod's full status: the sandbox and all its containers.
//  9. A stopped sandbox is NOTREADY and has no IP, but the STOPPED event of the stop still tells the IP.
//  10. A sandbox whose process died (rather than being stopped) is NOTREADY and keeps its IP; its containers go on running, but
//     for those in its process namespace, which is the default of NamespaceOption.
//  11. A cancelled RunPodSandbox or CreateContainer keeps its name reserved for [NameReservation]: the next call with that name is
//     refused with FailedPrecondition, `failed to reserve sandbox name "…": name "…" is reserved for "…"`.
//  12. A call that the client gave up still waits for its event to be published, and its work is done.
//  13. StopContainer of a container that was never started succeeds and leaves it CREATED.
//  14. StopContainer that the client cancels leaves the container running: nobody kills it at the end of the grace period.
//  15. RemoveContainer of a running container kills it; RemovePodSandbox of a ready sandbox stops it and removes its containers.
//  16. ImageStatus of an unknown image is an answer without an image, not an error. ListImages takes no notice of its filter.
//  17. A container that ends at once may have a finish time before its start time.
//  18. The status of a container names its image by tag and has as ImageRef its digest, or its id when the image was loaded and
//     never pulled; lists name the image as the creator did and have its id as ImageRef. In a list of statistics, containers that
//     do not run have neither CPU nor memory; asked for alone they are an error.
//  19. Status has conditions that are false and mean nothing to an agent (ContainerdHasNoDeprecationWarnings).
//  20. Streamed lists (StreamContainers and the like) are Unimplemented; [WithStreamedLists] makes a runtime that has those of
//     sandboxes and containers.
//  21. StopContainer with a time-out fails at once, and sends nothing, when the stop signal of the image is none ([Program.NoStopSignal]); without one it kills.
//  22. The service of tasks, at the same socket, sends a container's process any signal; one that has ended is NotFound there. [WithoutTasks] leaves it out.
//
// Beyond containerd, these are Unimplemented here: the streaming endpoints Exec, Attach and
// PortForward, checkpoints, statistics and metrics of pod sandboxes. ContainerStats and
// ListContainerStats answer with plausible constants, the image file system with the sum of the
// images. Ids must be given in full. A runtime without events is made with [WithoutEvents].
package critest
