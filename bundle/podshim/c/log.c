// The log of a container: the pod shim reads its pipes, and writes lines as the CRI has them.
#include "podshim.h"

// reopen opens the log, again if its path names another file now, which is what a rotation does. It returns an errno. A pod may be able to
// write to the folder: a link leads nowhere, and nobody is waited for.
int reopen(struct container *c) {
	struct stat st;
	if (c->log >= 0 && (stat(c->logpath, &st) || st.st_ino != c->ino || st.st_dev != c->dev)) shut(&c->log);
	if (c->log >= 0) return 0;
	c->log = open(c->logpath, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);
	if (c->log < 0 || fstat(c->log, &st)) return errno;
	if (!S_ISREG(st.st_mode)) { shut(&c->log); return EINVAL; }
	c->ino = st.st_ino;
	c->dev = st.st_dev;
	return 0;
}

static char stamp[64], inbuf[65536], outbuf[2 * sizeof inbuf + LINE + 4096]; // stamp: when inbuf was read
static size_t outlen;

// flush writes what there is. A disk that is full loses lines, as with containerd. No signal interrupts it, as none is handled.
static void flush(struct container *c) {
	ssize_t n;
	for (size_t at = 0; at < outlen && (n = write(c->log, outbuf + at, outlen - at)) > 0; at += n) {}
	outlen = 0;
}

// emit writes a line to the log. tag is F for a whole line or its end, P for a part.
static void emit(struct container *c, int which, char tag, const char *more, size_t len) {
	struct stream *s = &c->out[which];
	if (outlen + 64 + s->len + len > sizeof outbuf) flush(c);
	outlen += sprintf(outbuf + outlen, "%s %s %c ", stamp, which ? "stderr" : "stdout", tag);
	if (s->len) memcpy(outbuf + outlen, s->rest, s->len);
	outlen += s->len;
	memcpy(outbuf + outlen, more, len);
	outlen += len;
	outbuf[outlen++] = '\n';
	s->len = 0;
}

// split writes the lines of a text, and keeps the beginning of one that has no end yet. A line that is too long is cut, and one that
// ends with \r\n loses both, as containerd does it.
static void split(struct container *c, int which, const char *at, const char *end) {
	struct stream *s = &c->out[which];
	while (at < end) {
		const char *nl = memchr(at, '\n', end - at);
		size_t len = (nl ? nl : end) - at;
		if (nl && len && at[len - 1] == '\r') len--;
		else if (nl && !len && s->len && s->rest[s->len - 1] == '\r') s->len--;
		if (s->len + len > LINE) {
			size_t cut = LINE - s->len;
			emit(c, which, 'P', at, cut);
			at += cut;
		} else if (nl) {
			emit(c, which, 'F', at, len);
			at = nl + 1;
		} else {
			if (!s->rest && !(s->rest = malloc(LINE))) _exit(1);
			memcpy(s->rest + s->len, at, len);
			s->len += len;
			at = end;
		}
	}
}

// log writes what was read to the log; n is 0 at the end.
static void logged(struct container *c, int which, size_t n) {
	struct stream *s = &c->out[which];
	int64_t t = now();
	sprintf(stamp + strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", gmtime(&(time_t){ t / 1000000000 })), ".%09dZ", (int)(t % 1000000000));
	reopen(c);
	if (n) split(c, which, inbuf, inbuf + n);
	else if (s->len) emit(c, which, 'P', "", 0);
	flush(c);
	if (!s->len) { free(s->rest); s->rest = 0; }
}

// copy gives what a process writes to who is attached. What there is no room for is late, and nothing more is read meanwhile: who does
// not read stops this process alone. What nobody reads is dropped.
void copy(struct container *c, int which, const char *more, size_t n) {
	struct stream *s = &c->out[which];
	if (s->sink < 0) s->sink = open(named(c->file[COPYOUT + which]), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (n && !(s->late = realloc(s->late, s->lates + n))) _exit(1);
	memcpy(s->late + s->lates, more, n);
	s->lates += n;
	ssize_t w = write(s->sink, s->late, s->lates);
	if (w < 0 && errno != EAGAIN) { shut(&s->sink); w = s->lates; }
	if (w > 0) memmove(s->late, s->late + w, s->lates -= w);
	if (!s->lates) { free(s->late); s->late = 0; }
}

// drain takes what a process has written to the log and to who is attached. It returns 0 at the end, and -1 when there is nothing yet.
int drain(struct container *c, int which) {
	ssize_t n = read(c->file[READOUT + which], inbuf, sizeof inbuf);
	if (n < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
	if (n < 0) n = 0; // a terminal that nobody has open
	if (n && c->file[COPYOUT + which] >= 0) copy(c, which, inbuf, n);
	if (c->logpath) logged(c, which, n);
	return n > 0;
}

// feed takes what somebody types to the terminal, which may have no room.
void feed(struct container *c) {
	ssize_t n = c->inlen;
	if (!n && (n = read(c->file[TYPED], c->input, sizeof c->input)) < 0 && errno == EAGAIN) return;
	if (n <= 0 || c->file[READOUT] < 0) { shut(&c->file[TYPED]); c->inlen = 0; return; }
	ssize_t w = write(c->file[READOUT], c->input, n);
	c->inlen = w >= 0 ? n - w : errno == EAGAIN ? n : 0;
	if (w > 0) memmove(c->input, c->input + w, c->inlen);
}

// endstream ends the reading. What is late goes on; at the end of the process, the FIFO takes all of it.
void endstream(struct container *c, int which) {
	struct stream *s = &c->out[which];
	shut(&c->file[READOUT + which]);
	free(s->rest);
	s->rest = 0;
	s->len = 0;
}
