package differences

import "regexp"

// LocalAPI are the differences of the local API from a kube-apiserver that are meant (ADR 12). The
// kube-apiserver has no admission plugin TaintNodesByCondition: no scheduler here waits until a
// node is ready.
var LocalAPI = []Known{
	{
		Step: regexp.MustCompile(`^(POST|PATCH) .*/pods`), Fault: regexp.MustCompile(`^\.warning \d+\n    A: nothing\n    B: .*spec\.nodeName: nobody starts pods of node`),
		Reason: "a pod of another node waits for good, which the user is told",
	},
	{
		Step: regexp.MustCompile(`^P`), Fault: regexp.MustCompile(`^\.body\.message\n.*StorageError: invalid object, Code: 4, Key: .*\n.*StorageError: invalid object, Code: 4, Key: `),
		Reason: "the key under which the store has an object is its own",
	},
	{
		Step: regexp.MustCompile(`^POST .*/token`), Fault: regexp.MustCompile(`^\.body\.metadata\.managedFields\n`),
		Reason: "a request for a token is no object whose fields somebody could have",
	},
}
