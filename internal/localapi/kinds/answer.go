package kinds

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/internal/api/negotiate"
)

// MediaTypes returns the media types of objects, the default first.
func MediaTypes() []string {
	var types []string
	for _, info := range Codecs().SupportedMediaTypes() {
		types = append(types, info.MediaType)
	}
	return types
}

// IsPlain is for negotiate.Choose: it accepts each media type, but no conversion of objects.
func IsPlain(_ string, params map[string]string) bool { return params["as"] == "" }

// Fail responds with the Status of an error, as the API server does. An error that is no API error
// is an internal error.
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

// Answer writes one object in the supported format that the client prefers, else in JSON. It
// does not respond with 406; read.Handler does where required.
func Answer(w http.ResponseWriter, r *http.Request, code int, o runtime.Object) {
	format, ok := negotiate.Choose(r.Header.Get("Accept"), MediaTypes(), IsPlain)
	if !ok {
		format = runtime.ContentTypeJSON
	}
	info, _ := runtime.SerializerInfoForMediaType(Codecs().SupportedMediaTypes(), format)
	var body bytes.Buffer
	if err := info.Serializer.Encode(o, &body); err != nil {
		http.Error(w, fmt.Sprintf("encode the answer: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", format)
	w.WriteHeader(code)
	_, _ = w.Write(body.Bytes()) // a client that has disconnected needs no response
}
