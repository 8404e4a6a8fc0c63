// many is the part of harness that makes its inputs itself, of a seed: without a fork or an exchange for each, they are some ten thousands
// a second.
static uint64_t state; // of random

static uint32_t roll(uint32_t below) {
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (state >> 33) % below;
}

// walk reads all that a plan says, as who executes it does.
static void walk(const struct plan *p) {
	const uint32_t *words = (const uint32_t *)&p->step[p->steps];
	for (uint32_t i = 0; i < p->argc + p->envc; i++) look(text(p, words[i]));
	for (uint32_t i = 0; i < p->groups; i++) seen += words[p->argc + p->envc + i];
	look4(text(p, p->log), text(p, p->root), 0, 0);
	for (uint32_t i = 0; i < p->steps; i++) {
		const struct step *s = &p->step[i];
		for (int k = 0; k < 4; k++) look(text(p, s->s[k]));
		for (uint64_t at = 0; s->op == FILTER && at < 8 * s->n[1]; at++) seen += text(p, s->s[0])[at];
	}
}

// trychecks has a plan checked that is changed in many ways, of which a seed tells. A number stands before it: how many.
static void trychecks(size_t n) {
	uint32_t rounds, good = 0;
	struct { uint32_t seed, rounds; } h;
	if (n <= sizeof h) die("record");
	memcpy(&h, record, sizeof h);
	n -= sizeof h;
	state = h.seed;
	for (rounds = 0; rounds < h.rounds; rounds++) {
		size_t size = roll(4) ? n : 1 + roll(n);
		unsigned char *b = malloc(size); // so that the address sanitizer sees its end
		memcpy(b, record + sizeof h, size);
		for (uint32_t changes = roll(6); changes && size >= sizeof(struct plan); changes--) {
			uint32_t odd[] = { 0, 1, size - 1, size, size + 1, 1U << 31, -1U, roll(size), state >> 32, size / sizeof(struct step) };
			memcpy(b + (roll(2) ? roll(sizeof(struct plan) / 4) * 4 : roll(size - 3)), &odd[roll(10)], 4);
		}
		if (size >= sizeof(struct plan) && roll(4)) memcpy(b, &(uint32_t[]){ MAGIC, VERSION, size }, 12);
		if (checkplan((struct plan *)b, size) == NOTHING) {
			walk((struct plan *)b);
			good++;
		}
		free(b);
	}
	put(&(uint32_t){ good ? 1 : 0 }, 4);
	if (good) put(&(struct reply){ .version = VERSION, .op = LISTED, .status = good }, sizeof(struct reply));
}

// files is how many are open.
static int files(void) {
	int n = 0;
	for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

// tryrequests sends many messages with files beside them, of which a seed tells: each has one answer, and no file is left open.
static void tryrequests(void) {
	struct { uint32_t seed, rounds; } h;
	int bad = memfd_create("plan", MFD_CLOEXEC | MFD_ALLOW_SEALING), open = memfd_create("open", MFD_CLOEXEC);
	memcpy(&h, record, sizeof h);
	state = h.seed;
	if (write(bad, "not a plan", 10) != 10 || fcntl(bad, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)) die("plan");
	connected();
	int before = files();
	for (uint32_t i = 0; i < h.rounds; i++) {
		struct { struct request q; char more[64]; } b = { .q = { roll(8) ? VERSION : roll(4), roll(14) + (roll(9) ? 0 : 95), i, state >> 40, state >> 20, "", "" } };
		for (char *id = b.q.id; id < b.q.exec + IDLEN; id++) if (!roll(8)) *id = roll(256);
		union { char b[CMSG_SPACE(40 * sizeof(int))]; struct cmsghdr h; } control = { 0 };
		struct iovec v = { &b, roll(4) ? sizeof b.q : 1 + roll(sizeof b) };
		struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
		uint32_t beside = roll(4) ? 0 : roll(40);
		int fd[40], got = 0;
		struct reply r;
		for (uint32_t k = 0; k < beside; k++) fd[k] = roll(2) ? bad : open;
		if (beside) {
			m.msg_control = &control;
			m.msg_controllen = CMSG_LEN(beside * sizeof *fd);
			control.h = (struct cmsghdr){ .cmsg_len = m.msg_controllen, .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
			memcpy(CMSG_DATA(&control.h), fd, beside * sizeof *fd);
		}
		if (sendmsg(peer, &m, 0) != (ssize_t)v.iov_len) die("send");
		receive();
		over = 0;
		while (recv(peer, &r, sizeof r, MSG_DONTWAIT) == sizeof r) got++;
		if (got != 1) die("a message has not one answer");
	}
	if (files() != before) die("a file is left open");
	close(bad);
	close(open);
	put(&(uint32_t){ 0 }, 4);
}
