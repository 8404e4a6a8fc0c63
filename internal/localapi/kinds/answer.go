package kinds

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Fail answers with an error as the API server does: with a Status. What is none of its errors is
// an internal one.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	s := known.Status()
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if d := s.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	Answer(w, r, int(s.Code), &s)
}

// Answer writes one object in the first format of those that the client accepts that is known, else
// in JSON. It is for answers that are made for everybody; reads.Handler says 406 where it must.
func Answer(w http.ResponseWriter, r *http.Request, code int, o runtime.Object) {
	format := runtime.ContentTypeJSON
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		media, parameters, _ := strings.Cut(strings.TrimSpace(accepted), ";")
		if _, ok := runtime.SerializerInfoForMediaType(Codecs().SupportedMediaTypes(), media); ok && !strings.Contains(parameters, "as=") {
			format = media
			break
		}
	}
	info, _ := runtime.SerializerInfoForMediaType(Codecs().SupportedMediaTypes(), format)
	var body bytes.Buffer
	if err := info.Serializer.Encode(o, &body); err != nil {
		http.Error(w, fmt.Sprintf("encode the answer: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", format)
	w.WriteHeader(code)
	_, _ = w.Write(body.Bytes()) // a client that has gone needs no answer
}
