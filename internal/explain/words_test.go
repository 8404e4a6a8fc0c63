package explain

import "testing"

func TestByteSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1024: "1.0 KiB", 1000 << 10: "1.0 MiB", 1536 << 20: "1.5 GiB", 5000 << 40: "5000.0 TiB"} {
		if got := ByteSize(n); got != want {
			t.Errorf("ByteSize(%d) = %s, want %s", n, got, want)
		}
	}
}
