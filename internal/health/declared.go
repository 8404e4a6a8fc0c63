package health

import (
	"slices"
	"strings"
	"time"
)

// Code identifies a condition. It is stable: scripts may rely on it.
type Code string

// More returns the documentation page of the condition.
func (c Code) More() string { return "docs/health.md#" + strings.ToLower(string(c)) }

// The codes of all conditions.
const (
	ContainerRuntime   Code = "ContainerRuntime"
	ContainerNetwork   Code = "ContainerNetwork"
	PLEG               Code = "PLEG"
	EmbeddedRuntime    Code = "EmbeddedRuntime"
	RuntimeStore       Code = "RuntimeStore"
	CSINode            Code = "CSINode"
	EventStream        Code = "EventStream"
	Plugins            Code = "Plugins"
	DevicePlugins      Code = "DevicePlugins"
	ContainerCPUs      Code = "ContainerCPUs"
	Persistence        Code = "Persistence"
	LocalAPI           Code = "LocalAPI"
	APIServer          Code = "APIServer"
	ClientCertificate  Code = "ClientCertificate"
	ServingCertificate Code = "ServingCertificate"
	Clock              Code = "Clock"
	Shutdown           Code = "Shutdown"
	Manifests          Code = "Manifests"
	Quarantine         Code = "Quarantine"
)

// Condition is a declared problem of the agent or its environment.
type Condition struct {
	Code Code `json:"code"`
	// Title describes the problem.
	Title string `json:"title"`
	// Help is the remedy.
	Help string `json:"help"`
	// DependsOn are the conditions that cause this one.
	DependsOn []Code `json:"-"`
	// VisibleAfter is how long the condition must last until it is reported.
	VisibleAfter time.Duration `json:"-"`
	// MakesNotReady makes the Node not ready.
	MakesNotReady bool `json:"makesNotReady,omitempty"`
	// FailsHealthz makes /healthz fail.
	FailsHealthz bool `json:"failsHealthz,omitempty"`
}

// Declared returns all conditions, in the order of the message of the Node's condition Ready.
func Declared() []Condition { return slices.Clone(declared) }

var declared = []Condition{
	{
		Code:      ContainerRuntime,
		Title:     "The container runtime does not answer, or says that it is not ready.",
		Help:      "Look at the runtime's own log and service. Running containers go on.",
		DependsOn: []Code{EmbeddedRuntime}, MakesNotReady: true,
	},
	{
		Code: ContainerNetwork, Title: "The container runtime has no network for pods.",
		Help: "Install the network plugin of the cluster, or look at its configuration. The " +
			"runtime inside needs none once the Node has a podCIDR. Pods in the host's network run.",
		DependsOn: []Code{ContainerRuntime}, MakesNotReady: true,
	},
	{
		Code: PLEG, Title: "The pods of the container runtime cannot be listed.",
		Help: "The message names the call that fails or hangs. Until it works, changes of " +
			"pods are not carried out.",
		DependsOn: []Code{ContainerRuntime, EmbeddedRuntime}, MakesNotReady: true, FailsHealthz: true,
	},
	{
		Code: EmbeddedRuntime, Title: "The container runtime inside berth does not run.",
		Help: "It is started again by itself; the message and containerd.log below the " +
			"root directory say why it ends. Running containers go on.",
		MakesNotReady: true, FailsHealthz: true,
	},
	{
		Code: CSINode, Title: "The API server has no CSINode of this machine yet.",
		Help: "It is written as soon as the API server takes it. Pods with volumes of " +
			"drivers cannot be scheduled here before.",
		DependsOn: []Code{APIServer}, MakesNotReady: true,
	},
	{
		Code: Shutdown, Title: "The machine is about to be turned off.",
		Help: "Its pods end, and none starts. Where the shutdown was called off, it goes " +
			"away by itself; systemd-inhibit --list shows who delays it.",
		MakesNotReady: true,
	},
	{
		Code: EventStream, Title: "The container runtime sends no events.",
		Help: "The runtime is listed every second instead, which costs CPU. Use a runtime " +
			"with CRI's GetContainerEvents, and look at its log if it has it.",
		DependsOn: []Code{ContainerRuntime, EmbeddedRuntime, PLEG}, VisibleAfter: 10 * time.Second,
	},
	{
		Code: Plugins, Title: "A driver has not been registered.",
		Help: "The message names the driver's socket. Look at the log of the driver; it is " +
			"tried again.",
		DependsOn: []Code{APIServer}, VisibleAfter: 10 * time.Second,
	},
	{
		Code: DevicePlugins, Title: "Device plugins cannot register.",
		Help: "The message names the socket or the folder, which is tried again. Until then, " +
			"devices count as away, and containers that need one wait.",
		VisibleAfter: 10 * time.Second,
	},
	{
		Code: ContainerCPUs, Title: "A container runs on other CPUs than it should.",
		Help: "The message has what the container runtime says when it is to move the " +
			"container; it is tried again. Another container may lose time meanwhile.",
		DependsOn: []Code{ContainerRuntime, EmbeddedRuntime},
	},
	{
		Code: Persistence, Title: "A file of the root directory cannot be written.",
		Help: "Make room on the disk, or make it writable. Pods go on; the next agent may not " +
			"know what happened to them meanwhile.",
	},
	{
		Code: LocalAPI, Title: "The Kubernetes API of this machine, or the agent's own without it, does not do everything.",
		Help: "The message names the file, the port or the program, and what is wrong with it. " +
			"Pods go on; with a file that cannot be read those of the API cannot be changed until the " +
			"agent is started with a good one. If a file was damaged and recovered, or recreated, it reports " +
			"what is lost, until the damaged file that is kept is removed.",
	},
	{
		Code: RuntimeStore, Title: "Images were lost with a damaged file of the container runtime inside berth.",
		Help: "The message names the file and the images. Pods pull what a registry has; import " +
			"again what was imported (berth image import), and then remove the report that the message names.",
	},
	{
		Code: APIServer, Title: "The API server cannot be reached.",
		Help: "Look at the network, and at the server's address in the kubeconfig. Pods go " +
			"on; their status is written when the server is back. After a start without it the message " +
			"says how many pods are synced from the offline cache.",
		DependsOn: []Code{ClientCertificate}, VisibleAfter: 30 * time.Second,
	},
	{
		Code:  ClientCertificate,
		Title: "The client certificate of this node is missing, has ended, or ends soon.",
		Help: "Look whether the cluster signs the node's request (kubectl get csr). After " +
			"the end, the node needs a new bootstrap kubeconfig.",
		VisibleAfter: 5 * time.Minute,
	},
	{
		Code:  ServingCertificate,
		Title: "The certificate of port 10250 is missing, has ended, or ends soon.",
		Help: "Approve the node's request (kubectl get csr), or replace tlsCertFile and " +
			"tlsPrivateKeyFile. Logs and exec fail without it.",
		DependsOn: []Code{APIServer}, VisibleAfter: 5 * time.Minute,
	},
	{
		Code: Clock, Title: "The clock of the machine was set.",
		Help: "Ages, deadlines and certificates may look wrong. Look at the machine's time " +
			"service. The condition shows for an hour.",
	},
	{
		Code: Manifests, Title: "A manifest is refused.",
		Help: "The message names file and field; berth get pods -A shows all. The last good version " +
			"of the manifest stays in force.",
	},
	{
		Code: Quarantine, Title: "A pod is set aside, because the agent crashed with it in hand.",
		Help: "berth explain shows the crash. The pod is touched again when its spec changes, or " +
			"after berth release.",
	},
}
