// The part of harness that creates its inputs itself, from a seed: without a fork or an exchange
// with ctest for each, it tests some ten thousand a second.
static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (random_state >> 33) % limit;
}

// read_plan reads all of a plan that running it reads.
static void read_plan(const struct plan *plan)
{
	const uint32_t *words = (const uint32_t *)&plan->steps[plan->step_count];

	for (uint32_t i = 0; i < plan->argc + plan->envc; i++)
		read_string(plan_string(plan, words[i]));
	for (uint32_t i = 0; i < plan->group_count; i++)
		checksum += words[plan->argc + plan->envc + i];
	read_string(plan_string(plan, plan->log_path));
	read_string(plan_string(plan, plan->root_path));
	for (uint32_t i = 0; i < plan->step_count; i++) {
		const struct step *step = &plan->steps[i];
		for (int k = 0; k < 4; k++)
			read_string(plan_string(plan, step->strings[k]));
		if (step->op != STEP_SECCOMP_FILTER)
			continue;
		for (uint64_t at = 0; at < 8 * step->numbers[1]; at++)
			checksum += plan_string(plan, step->strings[0])[at];
	}
}

// change_plan changes up to five words of a plan, and then most often makes its header valid again.
static void change_plan(unsigned char *plan, size_t size)
{
	if (size < sizeof(struct plan)) {
		random_below(6);
		return;
	}
	for (uint32_t changes = random_below(6); changes; changes--) {
		uint32_t values[] = {0, 1, size - 1, size, size + 1, 1U << 31, -1U,
			random_below(size), random_state >> 32, size / sizeof(struct step)};
		size_t at;
		if (random_below(2))
			at = random_below(sizeof(struct plan) / 4) * 4;
		else
			at = random_below(size - 3);
		memcpy(plan + at, &values[random_below(10)], 4);
	}
	if (random_below(4))
		memcpy(plan, &(uint32_t[]){PLAN_MAGIC, VERSION, size}, 12);
}

// test_validation validates changed copies of a plan. The record begins with the seed and the
// number of copies. The reply, if any copy is valid, has their number as its exit status.
static void test_validation(size_t n)
{
	struct {
		uint32_t seed, rounds;
	} head;
	uint32_t valid = 0;

	if (n <= sizeof head)
		die("record");
	memcpy(&head, record, sizeof head);
	n -= sizeof head;
	random_state = head.seed;
	for (uint32_t i = 0; i < head.rounds; i++) {
		size_t size = random_below(4) ? n : 1 + random_below(n);
		unsigned char *plan = malloc(size); // the address sanitizer knows where it ends
		memcpy(plan, record + sizeof head, size);
		change_plan(plan, size);
		if (validate_plan((struct plan *)plan, size) == REASON_NONE) {
			read_plan((struct plan *)plan);
			valid++;
		}
		free(plan);
	}
	write_result(&(uint32_t){valid ? 1 : 0}, 4);
	if (valid) {
		struct reply reply = {.version = VERSION, .op = OP_LISTED, .exit_status = valid};
		write_result(&reply, sizeof reply);
	}
}

static int count_open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

// send_random_request sends a random message with random descriptors, of those at files, and lets
// the pod shim receive it.
static void send_random_request(uint32_t seq, const int files[2])
{
	struct {
		struct request request;
		char more[64];
	} message = {0};
	struct request *request = &message.request;
	int fds[40];

	request->version = random_below(8) ? VERSION : random_below(4);
	request->op = random_below(14);
	if (!random_below(9))
		request->op += 95;
	request->seq = seq;
	request->arg = random_state >> 40;
	request->fd_mask = random_state >> 20;
	for (char *id = request->id; id < request->exec_id + ID_LENGTH; id++) {
		if (!random_below(8))
			*id = random_below(256);
	}
	size_t length = random_below(4) ? sizeof *request : 1 + random_below(sizeof message);
	uint32_t count = random_below(4) ? 0 : random_below(40);
	for (uint32_t i = 0; i < count; i++)
		fds[i] = files[random_below(2)];
	send_with_fds(client_fd, &message, length, fds, count);
	receive_request();
	stopping = 0;
}

// test_requests sends random messages. The record has the seed and their number. Each must get one
// reply, and no descriptor may stay open.
static void test_requests(void)
{
	struct {
		uint32_t seed, rounds;
	} head;
	int sealed = memfd_create("plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int unsealed = memfd_create("open", MFD_CLOEXEC);

	memcpy(&head, record, sizeof head);
	random_state = head.seed;
	if (write(sealed, "not a plan", 10) != 10 ||
		fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW))
		die("plan");
	ensure_connected();
	int before = count_open_fds();
	for (uint32_t i = 0; i < head.rounds; i++) {
		struct reply reply;
		int replies = 0;
		send_random_request(i, (int[]){unsealed, sealed});
		while (recv(client_fd, &reply, sizeof reply, MSG_DONTWAIT) == sizeof reply)
			replies++;
		if (replies != 1)
			die("a message has not one reply");
	}
	if (count_open_fds() != before)
		die("a descriptor is open");
	close(sealed);
	close(unsealed);
	write_no_replies();
}
