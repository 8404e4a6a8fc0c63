/*
 * pause holds the namespaces of a pod: it waits for signals, buries the orphans that a shared process namespace leaves to
 * PID 1, and ends on SIGTERM or SIGINT. Without a C library it is a few kilobytes, which every pod pays for once.
 *
 * Signals are blocked and then waited for, not handled: the kernel discards an unhandled signal of PID 1 but queues a blocked one,
 * and no handler means no code that depends on the signal frame of an architecture.
 */

#define SIGINT 2
#define SIGTERM 15
#define SIGCHLD 17
#define SIG_BLOCK 0
#define WNOHANG 1
#define BIT(sig) (1UL << ((sig)-1))

#if defined(__x86_64__)

#define SYS_rt_sigprocmask 14
#define SYS_wait4 61
#define SYS_rt_sigtimedwait 128
#define SYS_exit_group 231

static long syscall4(long n, long a, long b, long c, long d) {
	register long r10 __asm__("r10") = d;
	long ret;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return ret;
}

#elif defined(__aarch64__)

#define SYS_rt_sigprocmask 135
#define SYS_wait4 260
#define SYS_rt_sigtimedwait 137
#define SYS_exit_group 94

static long syscall4(long n, long a, long b, long c, long d) {
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

#else
#error "pause knows the system calls of x86_64 and aarch64 only"
#endif

void _start(void) {
	unsigned long set = BIT(SIGINT) | BIT(SIGTERM) | BIT(SIGCHLD);
	syscall4(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, sizeof set);
	for (;;) {
		/* An orphan may have ended before the signal was blocked, and one SIGCHLD may stand for many of them. */
		while (syscall4(SYS_wait4, -1, 0, WNOHANG, 0) > 0)
			;
		long sig = syscall4(SYS_rt_sigtimedwait, (long)&set, 0, 0, sizeof set);
		if (sig == SIGINT || sig == SIGTERM)
			syscall4(SYS_exit_group, 0, 0, 0, 0);
	}
}
