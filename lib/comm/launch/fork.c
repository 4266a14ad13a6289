/* Ranks on this host: forks of one process, which supervises them and computes nothing. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/shared.h"
#include "comm/launch/launch_impl.h"
#include "io/process.h"

enum { MAX_RANKS = 1024 };

/* How long the others may live after a rank died: they detect and report it themselves.  After an abort they already
 * have.
 */
static const double GRACE_S = 15, ABORT_GRACE_S = 3;

struct rank_state {
	_Atomic unsigned came; /* rounds of publishing that it has entered: its slot holds the data of that one */
	_Atomic int ended;     /* it called vfm_launch_end */
	_Atomic int gone;      /* the parent reaped it: its wait status + 1 */
	char slot[2][VFM_PUBLISH_MAX]; /* of even and odd rounds: no rank can be two ahead */
};

/* In memory shared by all ranks and the parent. */
struct shared {
	_Atomic uint32_t changes; /* a futex: the last rank has come, or a rank has ended */
	_Atomic int aborted;
	struct rank_state rank[];
};

static size_t shared_bytes(int n)
{
	return sizeof(struct shared) + (size_t)n * sizeof(struct rank_state);
}

static void wake_ranks(struct shared *s)
{
	s->changes++;
	vfm_word_wake(&s->changes);
}

/* ---- the ranks' side ---- */

static int report_missing_rank(struct vfm_launch *l, unsigned round, double waited, struct vfm_err *err)
{
	struct shared *s = l->priv;
	char how[32];

	for (int r = 0; r < l->size; r++) {
		int gone = s->rank[r].gone;

		if (!gone || s->rank[r].came >= round)
			continue;
		vfm_wait_status_text(gone - 1, how, sizeof(how));
		return vfm_fail(err, VFM_EENV, "rank %d ended (%s) before all ranks had connected", r, how);
	}
	for (int r = 0; waited >= 0 && r < l->size; r++)
		if (s->rank[r].came < round)
			return vfm_fail(err, VFM_EENV, "rank %d did not start within %.3g s", r, waited);
	return 0;
}

static bool have_all_come(const struct vfm_launch *l, unsigned round)
{
	const struct shared *s = l->priv;

	for (int r = 0; r < l->size; r++)
		if ((int)(s->rank[r].came - round) < 0)
			return false;
	return true;
}

/* Each rank checks for itself whether all have arrived: one that dies meanwhile leaves no partial state. */
static int fork_publish(struct vfm_launch *l, const void *mine, size_t n, struct vfm_err *err)
{
	struct shared *s = l->priv;
	struct rank_state *me = &s->rank[l->rank];
	unsigned round = me->came + 1;
	uint32_t seen;
	double t0 = vfm_now(), limit = vfm_launch_timeout();

	memcpy(me->slot[round & 1], mine, n);
	me->came = round;
	if (have_all_come(l, round))
		wake_ranks(s);
	while (seen = s->changes, !have_all_come(l, round)) {
		TRY(report_missing_rank(l, round, vfm_now() - t0 > limit ? limit : -1, err));
		vfm_word_wait(&s->changes, seen, 200);
	}
	return 0;
}

static int fork_fetch(struct vfm_launch *l, int rank, void *out, size_t n, struct vfm_err *err)
{
	const struct shared *s = l->priv;

	(void)err;
	memcpy(out, s->rank[rank].slot[s->rank[l->rank].came & 1], n);
	return 0;
}

static void fork_end(struct vfm_launch *l)
{
	struct shared *s = l->priv;

	s->rank[l->rank].ended = 1;
	munmap(s, shared_bytes(l->size));
	l->priv = NULL;
}

static void fork_abort(struct vfm_launch *l, int status, const char *why)
{
	struct shared *s = l->priv;

	(void)status, (void)why; /* the caller reports why and exits with the status */
	s->aborted = 1;
}

static const struct vfm_launch_table fork_table = {
	.name = "fork", .publish = fork_publish, .fetch = fork_fetch, .end = fork_end, .abort = fork_abort};

/* ---- the parent's side ---- */

struct family {
	struct vfm_launch *l;
	struct shared *s;
	pid_t *pid; /* 0: reaped */
	int left;
	double kill_at; /* when the parent kills the ranks; 0: never */
	bool killed;
};

/* Returns the worse status: 0 is best, then 75 (stopped early), then the rest. */
static int worse_status(int a, int b)
{
	int ra = a == 75 ? 1 : a ? a + 1 : 0, rb = b == 75 ? 1 : b ? b + 1 : 0;

	return ra > rb ? a : b;
}

static void signal_ranks(struct family *f, int sig)
{
	for (int r = 0; r < f->l->size; r++)
		if (f->pid[r] > 0)
			kill(f->pid[r], sig);
}

static void note_ended_rank(struct family *f, int r, int st)
{
	bool in_order = f->s->rank[r].ended && WIFEXITED(st);
	char how[32];

	f->pid[r] = 0;
	f->left--;
	f->s->rank[r].gone = st + 1;
	wake_ranks(f->s);
	f->l->status = worse_status(f->l->status, WIFSIGNALED(st) ? 3 : WEXITSTATUS(st));
	if (WIFSIGNALED(st) && !f->killed && !*f->l->why) {
		vfm_wait_status_text(st, how, sizeof(how));
		snprintf(f->l->why, sizeof(f->l->why), "rank %d was killed by %s", r, how);
	}
	if (!in_order && !f->kill_at)
		f->kill_at = vfm_now() + GRACE_S;
	if (f->s->aborted && f->kill_at > vfm_now() + ABORT_GRACE_S)
		f->kill_at = vfm_now() + ABORT_GRACE_S;
}

static void reap_ranks(struct family *f)
{
	for (int r = 0; r < f->l->size; r++) {
		int st;

		if (f->pid[r] > 0 && waitpid(f->pid[r], &st, WNOHANG) == f->pid[r])
			note_ended_rank(f, r, st);
	}
}

static void make_forwarded_set(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGHUP);
	sigaddset(set, SIGUSR1);
	sigaddset(set, SIGUSR2);
	sigaddset(set, SIGCHLD);
}

static void supervise_ranks(struct family *f)
{
	sigset_t set;

	make_forwarded_set(&set);
	for (reap_ranks(f); f->left > 0; reap_ranks(f)) {
		double wait = f->kill_at ? f->kill_at - vfm_now() : 1;
		struct timespec ts = {.tv_sec = wait >= 1,
			.tv_nsec = wait >= 1 ? 0
				: wait > 0   ? (long)(wait * 1e9)
					     : 0};
		siginfo_t info;
		int sig;

		if (f->kill_at && wait <= 0) {
			f->killed = true;
			signal_ranks(f, SIGKILL);
			f->kill_at = vfm_now() + 1;
			continue;
		}
		sig = sigtimedwait(&set, &info, &ts);
		/* The terminal has sent its signals to the ranks as well. */
		if (sig > 0 && sig != SIGCHLD && info.si_code != SI_KERNEL)
			signal_ranks(f, sig);
	}
}

static void become_rank(struct vfm_launch *l, struct shared *s, int r, pid_t parent, const sigset_t *mask)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives its parent */
	if (getppid() != parent)
		_exit(3);
	sigprocmask(SIG_SETMASK, mask, NULL);
	l->rank = r;
	l->priv = s;
	l->t = &fork_table;
	l->node_of = vfm_calloc((size_t)l->size, sizeof(int));
	vfm_launch_place(l);
	vfm_launch_threads(l, vfm_launch_bind(l) ? 1 : l->local_size);
}

int vfm_launch_fork(struct vfm_launch *l, int n, struct vfm_err *err)
{
	struct family f = {.l = l};
	pid_t parent = getpid();
	sigset_t set, before;
	int rc = 1;

	if (n > MAX_RANKS)
		return vfm_fail(err, VFM_EUSAGE, "-n: expected 1 to %d, got %d", MAX_RANKS, n);
	f.s = mmap(NULL, shared_bytes(n), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (f.s == MAP_FAILED)
		return vfm_fail_errno(err, VFM_EENV, "cannot share memory between %d ranks", n);
	f.pid = vfm_calloc((size_t)n, sizeof(*f.pid));
	l->size = n;
	vfm_launch_local_job(l);
	make_forwarded_set(&set);
	sigprocmask(SIG_BLOCK, &set, &before);
	for (int r = 0; r < n; r++) {
		pid_t pid = fork();

		if (pid == 0) {
			free(f.pid);
			become_rank(l, f.s, r, parent, &before);
			return 0;
		}
		if (pid < 0) {
			rc = vfm_fail_errno(err, VFM_EENV, "cannot start rank %d of %d", r, n);
			f.killed = true;
			signal_ranks(&f, SIGKILL);
			break;
		}
		f.pid[r] = pid;
		f.left++;
	}
	supervise_ranks(&f);
	sigprocmask(SIG_SETMASK, &before, NULL);
	munmap(f.s, shared_bytes(n));
	free(f.pid);
	return rc;
}
