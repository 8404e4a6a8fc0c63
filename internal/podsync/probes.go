package podsync

import "berth/internal/pod"

func (s *Syncer) syncProbes(r Request) {
	if s.Probes != nil {
		s.Probes.Sync(r.Pod, r.Observed)
	}
}

func (s *Syncer) removeProbes(uid pod.UID) {
	if s.Probes != nil {
		s.Probes.Remove(uid)
	}
}

func (s *Syncer) verdicts(uid pod.UID) pod.ProbeVerdicts {
	if s.Probes == nil {
		return pod.ProbeVerdicts{}
	}
	return s.Probes.Verdicts(uid)
}
