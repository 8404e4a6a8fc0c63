// Output and input of processes: the pod shim reads their pipes and terminals, writes a container's
// output to its log in the format of the CRI, and forwards it to attached clients.
//
// The content of all streams is controlled by the container, as is the speed at which it is written
// and read. Nothing here blocks, except for a write to the log's disk.
#include "podshim.h"

// open_log opens the log of a container, and opens it again if its path has another file now, after
// a rotation. It returns 0 or an errno. A pod may be able to write to the directory of the log:
// O_NOFOLLOW rejects a symbolic link, O_NONBLOCK prevents a wait for the reader of a FIFO, and
// anything but a regular file is rejected.
int open_log(struct process *proc)
{
	struct stat st;

	if (proc->log_fd >= 0 &&
		(stat(proc->log_path, &st) || st.st_ino != proc->log_inode ||
			st.st_dev != proc->log_device))
		close_fd(&proc->log_fd);
	if (proc->log_fd >= 0)
		return 0;
	proc->log_fd = open(proc->log_path,
		O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);
	if (proc->log_fd < 0 || fstat(proc->log_fd, &st))
		return errno;
	if (!S_ISREG(st.st_mode)) {
		close_fd(&proc->log_fd);
		return EINVAL;
	}
	proc->log_inode = st.st_ino;
	proc->log_device = st.st_dev;
	return 0;
}

static char timestamp[64]; // when read_buffer was read
static char read_buffer[65536];
static char log_buffer[2 * sizeof read_buffer + MAX_LOG_LINE + 4096];
static size_t log_length; // of log_buffer

// flush_log writes log_buffer to the log. On a full disk, lines are lost, as with containerd. The
// write is not interrupted, because no signal has a handler.
static void flush_log(struct process *proc)
{
	size_t written = 0;

	while (written < log_length) {
		ssize_t n = write(proc->log_fd, log_buffer + written, log_length - written);
		if (n <= 0)
			break;
		written += n;
	}
	log_length = 0;
}

// append_log_line appends a line to log_buffer: the stream's partial line, followed by more. tag is
// F for a full line or the end of one, and P for a part.
static void append_log_line(
	struct process *proc, int which, char tag, const char *more, size_t length)
{
	struct stream *stream = &proc->streams[which];

	if (log_length + 64 + stream->line_length + length > sizeof log_buffer)
		flush_log(proc);
	log_length += sprintf(
		log_buffer + log_length, "%s %s %c ", timestamp, which ? "stderr" : "stdout", tag);
	if (stream->line_length)
		memcpy(log_buffer + log_length, stream->partial_line, stream->line_length);
	log_length += stream->line_length;
	memcpy(log_buffer + log_length, more, length);
	log_length += length;
	log_buffer[log_length++] = '\n';
	stream->line_length = 0;
}

// append_output appends the lines of the text between at and end to log_buffer, and keeps the
// beginning of a line without an end in partial_line. As containerd does, it splits a line that is
// too long, and removes both characters of "\r\n".
static void append_output(struct process *proc, int which, const char *at, const char *end)
{
	struct stream *stream = &proc->streams[which];

	while (at < end) {
		const char *newline = memchr(at, '\n', end - at);
		size_t length = (newline ? newline : end) - at;

		if (newline && length && at[length - 1] == '\r')
			length--;
		else if (newline && !length && stream->line_length &&
			stream->partial_line[stream->line_length - 1] == '\r')
			stream->line_length--;
		if (stream->line_length + length > MAX_LOG_LINE) {
			size_t part = MAX_LOG_LINE - stream->line_length;
			append_log_line(proc, which, 'P', at, part);
			at += part;
		} else if (newline) {
			append_log_line(proc, which, 'F', at, length);
			at = newline + 1;
		} else {
			if (!stream->partial_line)
				stream->partial_line = malloc(MAX_LOG_LINE);
			if (!stream->partial_line)
				_exit(1);
			memcpy(stream->partial_line + stream->line_length, at, length);
			stream->line_length += length;
			at = end;
		}
	}
}

// log_output writes the first n bytes of read_buffer to the log. n is 0 at the end of the stream.
static void log_output(struct process *proc, int which, size_t n)
{
	struct stream *stream = &proc->streams[which];
	int64_t now = current_time_ns();
	time_t seconds = now / 1000000000;
	size_t length =
		strftime(timestamp, sizeof timestamp, "%Y-%m-%dT%H:%M:%S", gmtime(&seconds));

	sprintf(timestamp + length, ".%09dZ", (int)(now % 1000000000));
	open_log(proc);
	if (n)
		append_output(proc, which, read_buffer, read_buffer + n);
	else if (stream->line_length)
		append_log_line(proc, which, 'P', "", 0);
	flush_log(proc);
	if (!stream->line_length) {
		free(stream->partial_line);
		stream->partial_line = 0;
	}
}

// forward_output writes n more bytes of a process's output to the FIFO of attached clients. Bytes
// that do not fit stay pending, and the pod shim reads no more of this output meanwhile: a slow
// reader only blocks this process. Output is dropped while the FIFO has no reader.
void forward_output(struct process *proc, int which, const char *more, size_t n)
{
	struct stream *stream = &proc->streams[which];

	if (stream->attach_fd < 0)
		stream->attach_fd = open(fd_path(proc->fds[FD_COPY_STDOUT + which]),
			O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (n) {
		stream->pending = realloc(stream->pending, stream->pending_length + n);
		if (!stream->pending)
			_exit(1);
	}
	memcpy(stream->pending + stream->pending_length, more, n);
	stream->pending_length += n;

	ssize_t written = write(stream->attach_fd, stream->pending, stream->pending_length);
	if (written < 0 && errno != EAGAIN) { // there is no reader
		close_fd(&stream->attach_fd);
		written = stream->pending_length;
	}
	if (written > 0) {
		stream->pending_length -= written;
		memmove(stream->pending, stream->pending + written, stream->pending_length);
	}
	if (!stream->pending_length) {
		free(stream->pending);
		stream->pending = 0;
	}
}

// read_output reads output of a process once, and passes it to attached clients and the log. which
// is 0 for stdout and 1 for stderr. It returns 1 after output, 0 at the end of the stream, and -1
// if there is no output yet.
int read_output(struct process *proc, int which)
{
	ssize_t n = read(proc->fds[FD_READ_STDOUT + which], read_buffer, sizeof read_buffer);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return -1;
	if (n < 0)
		n = 0; // a terminal that no process has open
	if (n && proc->fds[FD_COPY_STDOUT + which] >= 0)
		forward_output(proc, which, read_buffer, n);
	if (proc->log_path)
		log_output(proc, which, n);
	return n > 0;
}

// forward_input reads terminal input once, and writes it to the terminal. Bytes that do not fit
// stay in proc->input, and are written by the next call before anything else is read.
void forward_input(struct process *proc)
{
	ssize_t n = proc->input_length;

	if (!n) {
		n = read(proc->fds[FD_TERMINAL_INPUT], proc->input, sizeof proc->input);
		if (n < 0 && errno == EAGAIN)
			return;
	}
	if (n <= 0 || proc->fds[FD_READ_STDOUT] < 0) {
		close_fd(&proc->fds[FD_TERMINAL_INPUT]);
		proc->input_length = 0;
		return;
	}
	ssize_t written = write(proc->fds[FD_READ_STDOUT], proc->input, n);
	if (written >= 0)
		proc->input_length = n - written;
	else
		proc->input_length = errno == EAGAIN ? n : 0;
	if (written > 0)
		memmove(proc->input, proc->input + written, proc->input_length);
}

// close_stream stops reading an output stream. Its pending bytes stay for attached clients.
void close_stream(struct process *proc, int which)
{
	struct stream *stream = &proc->streams[which];

	close_fd(&proc->fds[FD_READ_STDOUT + which]);
	free(stream->partial_line);
	stream->partial_line = 0;
	stream->line_length = 0;
}
