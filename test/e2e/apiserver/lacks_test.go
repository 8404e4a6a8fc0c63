//go:build e2e

package apiserver

// Why the program does not keep a clause of the contract.
const (
	noKind   = "the local API has no such kind"
	theAgent = "the agent answers it, and does not pass it on"
)

// lacks are the clauses of the contract that the program does not keep, and why.
var lacks = map[string]string{
	"CertificateRequestsAreApproved":   noKind,
	"ClaimHasAStatusOfItsOwn":          noKind, // claims of devices
	"PodCertificateRequestsAreOfANode": noKind,
	"SlicesAreDeletedBySelector":       noKind,
	"TrustBundlesAreOfASigner":         noKind,

	"ReviewsAreAnsweredAndNotKept": theAgent,
	"TokensAreForAWhile":           theAgent,
	"TokensOfPods":                 theAgent,
	"TokensOfServiceAccounts":      theAgent,
	"WhoMay":                       theAgent,

	"VersionsAndGroups": "the group policy has budgets, of which there are none; and kube-apiserver's list of groups is that of its aggregator, which says apiVersion",
}
