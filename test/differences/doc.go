// Package differences sends the same writes to two API servers and says where their answers differ.
//
// From a seed it makes sequences of requests: an object of a kind of the local API is created, then
// changed, each time as a client with a mistake might do it. Two servers that are the same show no
// difference: what must differ (UIDs, resource versions, times, names that a server makes) is
// mapped to the same words. A difference is made as short as it can be, and those that are known
// are data with a reason.
//
// Owns: the corpus of valid objects, their mutations, the comparison of answers.
// Reads: the answers of the two servers, the seed.
// Never: knows what is right.
package differences
