package agenttest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"berth/internal/cluster/kube/kubetest"
)

// api runs the scenario commands of API clients and of the API server's availability.
func (s *story) api(args []string) error {
	if s.API == nil || len(args) == 0 {
		return errors.New("there is no API server before join, or nothing said of it")
	}
	switch args[0] {
	case "put":
		if len(args) != 2 {
			return errors.New("a file is needed")
		}
		return s.putObject(s.files[args[1]])
	case "create", "change":
		if len(args) != 2 {
			return errors.New("a file is needed")
		}
		p := &v1.Pod{}
		if err := yaml.UnmarshalStrict(s.files[args[1]], p); err != nil {
			return err
		}
		if p.Namespace == "" {
			p.Namespace = v1.NamespaceDefault
		}
		p.Spec.NodeName = NodeName
		if old, ok := kubetest.Get[*v1.Pod](s.API, p.Namespace, p.Name); ok != (args[0] == "change") {
			return fmt.Errorf("pod %s/%s: exists: %v", p.Namespace, p.Name, ok)
		} else if ok {
			p.Status = old.Status
		}
		kubetest.Put(s.API, p)
	case "delete":
		o := metav1.DeleteOptions{}
		if len(args) == 3 {
			seconds, err := strconv.ParseInt(args[2], 10, 64)
			if err != nil {
				return err
			}
			o.GracePeriodSeconds = &seconds
		}
		if !kubetest.Delete[*v1.Pod](s.API, v1.NamespaceDefault, args[1], o) {
			return errors.New("there is no such pod")
		}
	case "taint":
		return s.taint(args[1:])
	case "finish", "condition":
		return s.changeStatus(args[0], args[1:])
	case "down":
		s.API.Stop()
	case "up":
		s.API.Start()
		s.Settle(time.Minute) // clients' back-off
	case "breaks-watches":
		s.API.BreakWatches()
		s.Settle(time.Minute)
	default:
		return errors.New("clients create, change and delete pods, and put other objects; the API server goes down and up")
	}
	return nil
}

// taint adds a taint to the Node at the API server.
func (s *story) taint(args []string) error {
	n, ok := kubetest.Get[*v1.Node](s.API, "", NodeName)
	if !ok || len(args) != 3 {
		return errors.New("the Node, and a key, a value and an effect are needed")
	}
	n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: args[0], Value: args[1], Effect: v1.TaintEffect(args[2])})
	kubetest.Put(s.API, n)
	return nil
}

// putObject creates or replaces an object that pods refer to.
func (s *story) putObject(text []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "ConfigMap":
		return put(s.API, text, &v1.ConfigMap{})
	case "ServiceAccount":
		return put(s.API, text, &v1.ServiceAccount{})
	case "Secret":
		return put(s.API, text, &v1.Secret{})
	case "RuntimeClass":
		return put(s.API, text, &nodev1.RuntimeClass{})
	case "ResourceClaim":
		return put(s.API, text, &resourcev1.ResourceClaim{})
	case "PersistentVolume":
		return put(s.API, text, &v1.PersistentVolume{})
	case "PersistentVolumeClaim":
		return put(s.API, text, &v1.PersistentVolumeClaim{})
	}
	return fmt.Errorf("kind %q cannot be put", kind.Kind)
}

func put[P kubetest.Object](server *kubetest.Server, text []byte, o P) error {
	if err := yaml.UnmarshalStrict(text, o); err != nil {
		return err
	}
	kubetest.Put(server, o)
	return nil
}

// changeStatus changes a pod's status as a client other than the agent.
func (s *story) changeStatus(what string, args []string) error {
	if len(args) < 2 {
		return errors.New("a pod and its phase, or condition and status, are needed")
	}
	p, ok := kubetest.Get[*v1.Pod](s.API, v1.NamespaceDefault, args[0])
	switch {
	case !ok:
		return errors.New("there is no such pod")
	case what == "finish":
		p.Status.Phase = v1.PodPhase(args[1])
	case len(args) == 3:
		t := v1.PodConditionType(args[1])
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == t })
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: t, Status: v1.ConditionStatus(args[2])})
	default:
		return errors.New("a status is needed")
	}
	kubetest.Put(s.API, p)
	return nil
}

// expectAPI compares a pod at the API server.
func (s *story) expectAPI(args []string) error {
	if s.API == nil || len(args) < 2 {
		return errors.New("a pod and its line, or none, are needed")
	}
	p, ok := kubetest.Get[*v1.Pod](s.API, v1.NamespaceDefault, args[0])
	got := "none"
	if ok {
		ready := 0
		for _, c := range p.Status.ContainerStatuses {
			if c.Ready {
				ready++
			}
		}
		got = fmt.Sprintf("%s %d/%d", p.Status.Phase, ready, len(p.Spec.Containers))
		if p.DeletionTimestamp != nil {
			got += " deleting"
		}
	}
	if want := strings.Join(args[1:], " "); got != want {
		return fmt.Errorf("the API server shows %q", got)
	}
	return nil
}
