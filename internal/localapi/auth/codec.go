package auth

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/api/negotiate"
	"berth/internal/localapi/kinds"
)

// decode decodes the body of a request as an object of one kind.
func decode(w http.ResponseWriter, r *http.Request, into runtime.Object, kind schema.GroupVersionKind) error {
	body, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge()
	case err != nil:
		return apierrors.NewBadRequest("read the body: " + err.Error())
	}
	mediaType := runtime.ContentTypeJSON
	if header := r.Header.Get("Content-Type"); header != "" {
		if mediaType, _, err = mime.ParseMediaType(header); err != nil {
			mediaType = header
		}
	}
	info, ok := runtime.SerializerInfoForMediaType(kinds.Codecs().SupportedMediaTypes(), mediaType)
	if !ok {
		return failure(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
			"the body of the request was in an unknown format - accepted media types include: "+strings.Join(kinds.MediaTypes(), ", "))
	}
	decoder := info.StrictSerializer
	level := r.URL.Query().Get("fieldValidation")
	if level == metav1.FieldValidationIgnore || decoder == nil {
		decoder = info.Serializer
	}
	_, got, err := decoder.Decode(body, &kind, into)
	switch {
	case runtime.IsStrictDecodingError(err) && level != metav1.FieldValidationStrict:
		warn(w, err)
	case err == nil && *got != kind:
		err = errors.New("it is of another kind")
	}
	switch {
	case err == nil || runtime.IsStrictDecodingError(err) && level != metav1.FieldValidationStrict:
		return nil
	case got == nil || got.Kind == "":
		return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", kind.Kind, err, summarize(body)))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", got.Kind, got.Version, kind.Kind, err))
}

// summarize returns the start of a body, as text if it may be JSON.
func summarize(body []byte) string {
	const most = 30
	end := ""
	if len(body) > most {
		body, end = body[:most], " ..."
	}
	switch {
	case len(body) == 0:
		return "<empty>"
	case body[0] == '{':
		return string(body) + end
	}
	return hex.EncodeToString(body) + end
}

// warn adds warnings about unknown and duplicate fields to the response.
func warn(w http.ResponseWriter, err error) {
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		return
	}
	for _, e := range strict.Errors() {
		w.Header().Add("Warning", "299 - "+strconv.QuoteToASCII(e.Error()))
	}
}

// write responds with an object, in the format that the client accepts.
func write(w http.ResponseWriter, r *http.Request, code int, o runtime.Object) {
	info, err := accepted(r)
	if err != nil {
		writeError(w, r, err)
		return
	}
	writeAs(w, info, code, o)
}

func writeAs(w http.ResponseWriter, info runtime.SerializerInfo, code int, o runtime.Object) {
	gvks, _, err := kinds.Scheme().ObjectKinds(o)
	var body []byte
	if err == nil {
		body, err = runtime.Encode(kinds.Codecs().EncoderForVersion(info.Serializer, gvks[0].GroupVersion()), o)
	}
	if err != nil {
		http.Error(w, "encode the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", info.MediaType)
	h.Set("Cache-Control", "no-cache, private")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // a failed write means that the client has disconnected
}

// accepted returns the supported format that a client prefers, and JSON with an error if it accepts
// none.
func accepted(r *http.Request) (runtime.SerializerInfo, error) {
	types := kinds.Codecs().SupportedMediaTypes()
	media, ok := negotiate.Choose(r.Header.Get("Accept"), kinds.MediaTypes(), kinds.IsPlain)
	if !ok {
		return types[0], negotiate.NotAcceptable(kinds.MediaTypes())
	}
	info, _ := runtime.SerializerInfoForMediaType(types, media)
	return info, nil
}

// writeError responds with the Status of an error, or with an internal error.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	if retry, ok := apierrors.SuggestsClientDelay(err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(retry))
	}
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // responds at once, without waiting for the body
	}
	info, _ := accepted(r) // JSON is the fallback for errors
	writeAs(w, info, int(s.Code), &s)
}

func failure(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}
