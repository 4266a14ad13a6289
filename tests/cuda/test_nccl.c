/* NCCL's transport (lib/comm/device/comm_nccl.c) on a mock of NCCL: the tests of device communicators, then what blocking
 * communicators add: ranks that are missing in a call that nothing interrupts, aborts of several communicators, and the
 * host's cost of a collective. */
#include "nccl_mock.h"

extern const struct vfm_transport vfm_nccl_transport;
static const struct vfm_transport *const transport = &vfm_nccl_transport;

static void make_library(void)
{
	mock_make();
}

#include "comm/device/transport_impl.h"
#include "comm_dev_tests.h"

/* ---- failures ---- */

/* All others report rank 2, which is dead, or hangs until then. */
static void expect_reports(struct setup *s, void (*fn)(const struct setup *s))
{
	pid_t pid[RANKS];
	int st;

	make_library();
	start(s, pid, fn);
	for (int r = 0; r < s->n; r++) {
		if (r == 2)
			continue;
		waitpid(pid[r], &st, 0);
		print_message("rank %d: %s (after %.2f s)\n", r, sh->said[r], sh->at[r]);
		if (!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], "rank 2 (node0)"))
			fail_msg("rank %d: status %#x, said '%s' after %.2f s", r, st, sh->said[r], sh->at[r]);
	}
	kill(pid[2], SIGKILL);
	waitpid(pid[2], &st, 0);
}

/* Rank 2 dies (word 'k') or hangs ('h') while the others are in a split, whose thread cannot be interrupted. */
static void misses_a_split(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host), *c;
	double start = vfm_now();
	int rc;

	MUST(vfm_barrier(w, NULL, &err));
	if (rank == 2 && s->word == 'k')
		kill(getpid(), SIGKILL);
	if (rank == 2)
		hang();
	rc = vfm_comm_split(w, 0, 0, "late", &c, &err);
	CHECK(rc == VFM_EENV && !c);
	vfm_comm_dev_free(w, host); /* does not hang */
	say_and_exit(start);
}

/* The host communicator has split; only NCCL's split waits for rank 2. */
static void misses_the_librarys_split(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host);
	struct vfm_transport_group *g = (struct vfm_transport_group *)w;
	struct vfm_transport_comm *made = NULL;
	double start = vfm_now();
	int rc;

	if (rank == 2)
		sleep(3);
	if (rank == 2)
		kill(getpid(), SIGKILL);
	rc = transport->split(g->w, 0, 0, false, "late", &made, &err);
	CHECK(rc == VFM_TRANSPORT_BUSY && made);
	CHECK(transport->state(made, &err) == VFM_TRANSPORT_BUSY);
	CHECK(transport->state(g->w, &err) == VFM_TRANSPORT_BUSY);
	while (vfm_transport_job_check(g->job, &err) >= 0)
		usleep(1000);
	start += 3;
	transport->free(made); /* the thread is still in the split */
	vfm_comm_dev_free(w, host);
	say_and_exit(start);
}

/* Two communicators hang on two streams.  The end of an abort waits for the device: they must be aborted together. */
static void two_hang(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host), *c[2];
	struct vfm_stream *st[2];
	float x[2][64] = {{0}};
	double begun;

	for (int k = 0; k < 2; k++) {
		MUST(vfm_comm_split(w, 0, 0, k ? "second" : "first", &c[k], &err));
		st[k] = dev->t->stream_new(dev, true, &err);
		MUST(vfm_all_reduce(c[k], st[k], vfm_t1(x[k], VFM_F32, 64), &err));
		MUST(dev->t->stream_sync(st[k], &err));
	}
	begun = vfm_now();
	if (rank == 2)
		usleep(200000);
	if (rank == 2)
		kill(getpid(), SIGKILL);
	for (int k = 0; k < 2; k++)
		MUST(vfm_all_reduce(c[k], st[k], vfm_t1(x[k], VFM_F32, 64), &err));
	for (int k = 0; k < 2; k++)
		CHECK(dev->t->stream_sync(st[k], &err) == VFM_EENV);
	CHECK(mock_aborts == 3);
	for (int k = 0; k < 2; k++) {
		dev->t->stream_free(st[k]);
		vfm_comm_free(c[k]);
	}
	vfm_comm_dev_free(w, host);
	say_and_exit(begun);
}

/* The host thread blocks in the first collective of a group, which connects: the watch thread ends it. */
static void misses_the_first_collective(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host);
	float x[64] = {0};
	double begun = vfm_now();

	MUST(vfm_barrier(w, NULL, &err)); /* all have the communicator */
	usleep(100000);
	if (rank == 2 && s->word == 'k')
		kill(getpid(), SIGKILL);
	if (rank == 2)
		hang();
	CHECK(vfm_all_reduce(w, s->word == 'k' ? beside : compute, vfm_t1(x, VFM_F32, 64), &err) == VFM_EENV);
	dev->t->stream_free(beside);
	vfm_comm_dev_free(w, host);
	say_and_exit(begun);
}

static void missing_ranks(void **state)
{
	struct setup s = {.n = 4, .o.timeout_s = 2};

	(void)state;
	backend = transport->name;
	s.word = 'k';
	expect_reports(&s, misses_a_split);
	expect_reports(&s, misses_the_first_collective);
	expect_reports(&s, misses_the_librarys_split);
	expect_reports(&s, two_hang);
	s.word = 'h';
	expect_reports(&s, misses_the_first_collective);
}

/* ---- the host's cost of a collective beyond the library's ---- */

enum { COST_CALLS = 2000, COST_ROUNDS = 9, COST_LIMIT_NS = 10000 };

static double thread_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare_f64(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;

	return d < 0 ? -1 : d > 0;
}

/* Calls with buffers of a registered range, as training makes them. */
static void cost(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host);
	struct vfm_comm_mem m = {0};
	double ns[COST_ROUNDS];

	MUST(vfm_comm_mem_new(&m, w, compute, 1 << 20, "operands", &err));
	MUST(vfm_comm_mem_register(&m, w, &err));
	MUST(vfm_all_reduce(w, compute, vfm_t1(m.p, VFM_F32, 64), &err));
	mock_stub = true;
	for (int k = 0; k < COST_ROUNDS; k++) {
		double begun = thread_ns();

		for (int i = 0; i < COST_CALLS; i++)
			MUST(vfm_all_gather(
				w, compute, vfm_t1(m.p, VFM_F32, 64), vfm_t1(m.p, VFM_F32, 128), NULL, &err));
		ns[k] = (thread_ns() - begun) / COST_CALLS;
	}
	mock_stub = false;
	qsort(ns, COST_ROUNDS, sizeof(ns[0]), compare_f64);
	if (rank == 0)
		fprintf(stderr, "an all_gather costs the host %.0f ns (%.0f to %.0f) beyond NCCL and CUDA\n",
			ns[COST_ROUNDS / 2], ns[0], ns[COST_ROUNDS - 1]);
	CHECK(ns[COST_ROUNDS / 2] < COST_LIMIT_NS);
	vfm_comm_mem_release(&m);
	leave_dev(w, host);
}

static void costs(void **state)
{
	(void)state;
	backend = transport->name;
	make_library();
	all_well(&(struct setup){.n = 2}, cost);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(missing_ranks),
		cmocka_unit_test(costs),
	};

	return run_comm_dev_tests() + cmocka_run_group_tests(tests, NULL, NULL);
}
