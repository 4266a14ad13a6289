/* The host communicator over forked ranks: every collective against a local computation, and many groups at once, on
 * one node and on two (node_of is synthetic, so that the traffic uses TCP).  Then failures: a rank dies, stops, hangs,
 * or makes another call than the others. */
#include "comm/comm_nodes.h"
#include "comm_ranks.h"

static void rounds(const struct setup *s)
{
	struct vfm_comm *w = join(s);

	for (int64_t round = 0; round < 12; round++)
		everything(w, round);
	leave(w);
}

static void collectives(void **state)
{
	(void)state;
	for (int n = 1; n <= 8; n++)
		all_well(&(struct setup){.n = n}, rounds);
}

static void two_nodes(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 2, .per_node = 1}, rounds);
	all_well(&(struct setup){.n = 4, .per_node = 2}, rounds);
	all_well(&(struct setup){.n = 5, .per_node = 2}, rounds);
}

/* Compares direct reads of other ranks' memory with copies through slots. */
static void large(const struct setup *s)
{
	struct vfm_comm *w;

	if (s->o.timeout_s == 50)
		setenv("VFM_COMM_DIRECT", "0", 1);
	w = join(s);
	if (s->o.timeout_s == 50)
		CHECK(!((struct vfm_hcomm *)w)->job->pid);
	always = 300000 * size;
	for (int64_t round = 0; round < 4; round++) {
		do_all_gather(w, round);
		do_all_to_all(w, round);
	}
	always = 70000;
	everything(w, 1);
	leave(w);
}

static void large_shares(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 2}, large);
	all_well(&(struct setup){.n = 3}, large);
	all_well(&(struct setup){.n = 3, .o.timeout_s = 50}, large);
}

/* ---- groups ---- */

static void splits(const struct setup *s)
{
	struct vfm_comm *w = join(s);

	splits_of(w);
	leave(w);
}

static void groups(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 4}, splits);
	all_well(&(struct setup){.n = 7}, splits);
	all_well(&(struct setup){.n = 6, .per_node = 3}, splits);
}

static void *in_thread(void *arg)
{
	struct vfm_comm *c = arg;

	for (int64_t round = 0; round < 6; round++)
		everything(c, round * 7 + c->name[0]);
	return NULL;
}

static void threads(const struct setup *s)
{
	struct vfm_comm *w = join(s), *c[4];
	pthread_t t[4];

	for (int i = 0; i < 4; i++) {
		char name[2] = {(char)('a' + i), 0};

		MUST(vfm_comm_split(w, i == 3 ? w->rank % 2 : 0, 0, name, &c[i], &err));
	}
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, in_thread, c[(i + w->rank) % 4]);
	in_thread(w);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < 4; i++)
		vfm_comm_free(c[i]);
	leave(w);
}

static void at_once(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 4}, threads);
	all_well(&(struct setup){.n = 4, .per_node = 2}, threads);
}

/* Calls on asynchronous streams run in the threads of the streams, after the caller freed its counts, and are not
 * exposed. */
static void streams(const struct setup *s)
{
	struct vfm_comm *w = join(s), *c[3];
	struct vfm_dev *d = vfm_cpu_open(&err);
	struct vfm_stream *st[3];
	enum { CALLS = 20 };
	float *in[3], *out[3];
	double exposed;

	MUST(d ? 0 : -1);
	for (int k = 0; k < 3; k++) {
		MUST(vfm_comm_split(w, 0, 0, "stream", &c[k], &err));
		MUST((st[k] = d->t->stream_new(d, true, &err)) ? 0 : -1);
		in[k] = vfm_calloc(1000, sizeof(float));
		for (int e = 0; e < 1000; e++)
			in[k][e] = (float)(rank * 3 + k);
		out[k] = vfm_calloc((size_t)CALLS * 8000, sizeof(float));
	}
	exposed = vfm_comm_stats().wait_s;
	for (int i = 0; i < CALLS; i++)
		for (int k = 0; k < 3; k++) {
			int64_t *count = vfm_calloc((size_t)size, sizeof(*count)), n = 0;

			for (int r = 0; r < size; r++)
				n += count[r] = 10 * i + r + k;
			MUST(vfm_all_gather(c[k], st[k], vfm_t1(in[k], VFM_F32, count[rank]),
				vfm_t1(out[k] + i * 8000, VFM_F32, n), count, &err));
			memset(count, 0xff, (size_t)size * sizeof(*count));
			free(count);
		}
	for (int k = 0; k < 3; k++) {
		MUST(d->t->stream_sync(st[k], &err));
		for (int i = 0; i < CALLS; i++)
			for (int r = 0, at = i * 8000; r < size; r++)
				for (int e = 0; e < 10 * i + r + k; e++)
					CHECK(out[k][at++] == (float)(r * 3 + k));
		d->t->stream_free(st[k]);
		vfm_comm_free(c[k]);
		free(in[k]);
		free(out[k]);
	}
	CHECK(vfm_comm_stats().wait_s == exposed);
	MUST(vfm_barrier(w, NULL, &err));
	CHECK(vfm_comm_stats().wait_s > exposed && vfm_comm_stats().busy_s >= vfm_comm_stats().wait_s);
	d->t->dev_free(d);
	leave(w);
}

static void on_streams(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 4}, streams);
	all_well(&(struct setup){.n = 3, .per_node = 2}, streams);
}

static void many(const struct setup *s)
{
	struct vfm_comm *w = join(s);

	for (int64_t round = 0; round < 200; round++)
		MUST(vfm_barrier(w, NULL, &err));
	everything(w, 5);
	leave(w);
}

static void sixteen(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 16}, many);
}

/* Sums have the same bits on all ranks for any values; bf16 is summed in f32. */
static void bits(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	const int64_t sizes[] = {100, 300000};

	for (int k = 0; k < 4; k++) {
		enum vfm_dtype dt = k / 2 ? VFM_BF16 : VFM_F32;
		int64_t n = sizes[k % 2];
		struct vfm_rng g = vfm_rng_stream(1, (uint64_t)k, (uint64_t)w->rank, VFM_RNG_TEST);
		struct vfm_tensor x = fresh(dt, n), y = fresh(dt, n);

		for (int64_t i = 0; i < n; i++)
			put(x.data, dt, i, vfm_rng_normal(&g, (uint64_t)i));
		MUST(vfm_all_reduce(w, NULL, x, &err));
		memcpy(y.data, x.data, vfm_nbytes(&x));
		MUST(vfm_broadcast(w, NULL, y, 0, &err));
		CHECK(!memcmp(x.data, y.data, vfm_nbytes(&x)));
		for (int64_t i = 0; i < n; i++) {
			float sum = 0;

			for (int r = 0; r < w->size; r++) {
				struct vfm_rng h = vfm_rng_stream(1, (uint64_t)k, (uint64_t)r, VFM_RNG_TEST);
				float v = vfm_rng_normal(&h, (uint64_t)i);

				if (dt == VFM_BF16)
					v = vfm_bf16_to_f32(vfm_f32_to_bf16(v));
				sum = r ? sum + v : v;
			}
			if (dt == VFM_BF16)
				sum = vfm_bf16_to_f32(vfm_f32_to_bf16(sum));
			CHECK(get(x.data, dt, i) == (double)sum);
		}
		free(x.data);
		free(y.data);
	}
	leave(w);
}

static void same_bits(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 3}, bits);
	all_well(&(struct setup){.n = 3, .per_node = 2}, bits);
}

/* ---- sums in two levels (comm_nodes.h) ---- */

static double f32_value(int64_t i, int r)
{
	return (float)(value(VFM_F32, i % 13, r, i) * 0.37 + (double)(i % 101) * 0.013 + r * 0.001);
}

/* Compares element x of a sum with the sums of the nodes; `roundings`: 1, or 2 if the result is rounded, too. */
static void check_sum(const struct setup *s, int64_t i, float x, int roundings)
{
	double sum = 0, most = 0, node = 0, all = 0;

	for (int r = 0; r < size; r++) {
		node += f32_value(i, r);
		all += fabs(f32_value(i, r));
		if ((r + 1) % s->per_node == 0) {
			sum += node;
			most += fabs(node);
			node = 0;
		}
	}
	CHECK(fabs(x - sum) <= most / 256 * 1.001 + (roundings - 1) * (fabs(sum) + most / 256) / 256 + 1e-6 * all);
}

static void nodes_of(const struct setup *s)
{
	static const int64_t ns[] = {1, 5, 64, 1000, 40000};
	struct vfm_comm *w = join(s);
	struct vfm_dev *d = vfm_cpu_open(&err);
	struct vfm_stream *st[2] = {d->t->stream_new(d, false, &err), d->t->stream_new(d, true, &err)};
	struct vfm_comm_nodes n;
	float *x = vfm_calloc(40000 * RANKS, sizeof(*x)), *first = vfm_calloc(40000, sizeof(*first));
	char *scratch;

	MUST(vfm_comm_nodes_new(w, &n, &err));
	CHECK(n.all == w && n.node->size == s->per_node && n.across->size == size / s->per_node);
	CHECK(n.node->rank == rank % s->per_node && n.across->rank == rank / s->per_node);
	scratch = vfm_malloc(vfm_nodes_scratch(&n, 40000, true) + vfm_nodes_scratch(&n, 40000, false));
	for (int k = 0; k < 20; k++) {
		struct vfm_stream *on_stream = st[k / 5 % 2];
		int64_t m = ns[k % 5];

		for (int64_t i = 0; i < m; i++)
			x[i] = (float)f32_value(i, rank);
		MUST(vfm_nodes_all_reduce(&n, on_stream, vfm_t1(x, VFM_F32, m), scratch, &err));
		MUST(d->t->stream_sync(on_stream, &err));
		for (int64_t i = 0; i < m; i++)
			check_sum(s, i, x[i], 2);
		memcpy(first, x, (size_t)m * 4);
		MUST(vfm_broadcast(w, NULL, vfm_t1(first, VFM_F32, m), 0, &err));
		CHECK(!memcmp(first, x, (size_t)m * 4)); /* the bits of all ranks are equal */

		for (int64_t i = 0; i < m * size; i++)
			x[i] = (float)f32_value(i, rank);
		MUST(vfm_nodes_reduce_scatter(&n, on_stream, vfm_t1(x, VFM_F32, m * size), scratch, &err));
		MUST(d->t->stream_sync(on_stream, &err));
		for (int64_t i = m * rank; i < m * (rank + 1); i++)
			check_sum(s, i, x[i], 1);
	}
	vfm_comm_nodes_release(&n);
	d->t->stream_free(st[1]);
	d->t->stream_free(st[0]);
	d->t->dev_free(d);
	free(x);
	free(first);
	free(scratch);
	leave(w);
}

static void uneven_nodes(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	struct vfm_comm_nodes n;

	if (s->per_node)
		CHECK(vfm_comm_nodes_new(w, &n, &err) == VFM_EUSAGE && strstr(err.msg, "parallel.grad_reduce"));
	else
		CHECK(vfm_comm_nodes_new(w, &n, &err) == 0 && !n.all);
	leave(w);
}

static void between_nodes(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 6, .per_node = 3}, nodes_of);
	all_well(&(struct setup){.n = 6, .per_node = 2}, nodes_of);
	all_well(&(struct setup){.n = 3, .per_node = 1}, nodes_of);
	all_well(&(struct setup){.n = 5, .per_node = 2}, uneven_nodes);
	all_well(&(struct setup){.n = 3}, uneven_nodes);
}

/* ---- failures ---- */

static char folder[] = "/tmp/vfm-comm-XXXXXX";

static void say_and_exit(double since)
{
	snprintf(sh->said[rank], sizeof(sh->said[rank]), "%s", err.msg);
	sh->at[rank] = vfm_now() - since;
	_exit(3);
}

/* Rank 2 fails from round 5 on, as word[0] says: 'k' is killed, 's' is stopped, 'h' sleeps, 'm' calls another
 * collective, 'b' passes another size, 'a' aborts, 'x' ends normally. */
static void until_it_breaks(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	float x[64] = {0};
	double t = vfm_now();

	alarm(25);
	for (int round = 1;; round++) {
		int rc;

		t = vfm_now();
		if (rank == 2 && round == 5)
			switch ((int)sh->word[1]) {
			case 'k':
				kill(getpid(), SIGKILL);
				break;
			case 's':
				kill(getpid(), SIGSTOP);
				break;
			case 'h':
				sleep(20);
				break;
			case 'a':
				vfm_comm_host_abort(w, "the disk is full");
				break;
			case 'x':
				leave(w);
				exit(0);
			default:
				break;
			}
		if (rank == 2 && round == 5 && sh->word[1] == 'm')
			rc = vfm_barrier(w, NULL, &err);
		else
			rc = vfm_all_reduce(w, NULL,
				vfm_t1(x, VFM_F32, rank == 2 && round == 5 && sh->word[1] == 'b' ? 60 : 64), &err);
		if (rc < 0)
			say_and_exit(t);
		usleep(1000);
	}
}

/* The file of the flight recorder: the reason, then the calls up to the failed one. */
static void recorded(const char *path, const char *why, bool open)
{
	char *text, want[VFM_ERR_MAX + 32];
	size_t n;

	assert_int_equal(vfm_read_file(path, 1 << 20, &text, &n, &err), 0);
	snprintf(want, sizeof(want), "\"why\":\"%.100s", why);
	assert_non_null(strstr(text, want));
	assert_non_null(
		strstr(text, "\"group\":\"world\",\"number\":7,\"kind\":\"all_reduce\",\"bytes\":256,\"start_s\":"));
	assert_true(!open || strstr(text, "\"end_s\":null"));
	free(text);
}

static void breaks(struct setup s, int how, double within, const char *what)
{
	pid_t pid[RANKS];
	int st;
	char path[128];

	s.o.recorder_dir = folder;
	start(&s, pid, until_it_breaks);
	sh->word[1] = how;
	for (int r = 0; r < s.n; r++) {
		if (r == 2 && strchr("shx", how))
			continue;
		waitpid(pid[r], &st, 0);
		if (how == 'k' && r == 2)
			continue;
		if (!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], what) ||
			strcmp(sh->said[r], sh->said[0]) != 0)
			fail_msg("'%c': rank %d: status %#x, said '%s'", how, r, st, sh->said[r]);
		if (sh->at[r] > within)
			fail_msg("'%c': rank %d needed %.2f s", how, r, sh->at[r]);
		snprintf(path, sizeof(path), "%s/flight-%d.jsonl", folder, r);
		if (access(path, R_OK) != 0)
			fail_msg("no %s", path);
		recorded(path, sh->said[r], how == 'h' || how == 's');
		unlink(path);
	}
	print_message("%c: %s (after %.2f s)\n", how, sh->said[0], sh->at[0]);
	if (strchr("shx", how)) {
		kill(pid[2], SIGKILL);
		waitpid(pid[2], &st, 0);
	}
	snprintf(path, sizeof(path), "%s/flight-2.jsonl", folder);
	unlink(path);
}

static void failures(void **state)
{
	struct setup one = {.n = 4, .o.timeout_s = 2}, two = {.n = 4, .per_node = 2, .o.timeout_s = 2};

	(void)state;
	breaks(one, 'k', 1.5, "rank 2 (node0) died");
	breaks(two, 'k', 1.5, "rank 2 (node1) died");
	breaks(one, 's', 6, "rank 2 (node0) has not answered");
	breaks(one, 'h', 6, "rank 2 (node0) hangs: it has not reached all_reduce number 8 of 'world'");
	breaks(two, 'h', 6, "rank 2 (node1) hangs: it has not reached all_reduce");
	breaks(one, 'm', 2, "in barrier number 8");
	breaks(two, 'b', 2, "(240 bytes of f32)");
	breaks(one, 'a', 2, "rank 2 (node0) failed: the disk is full");
	breaks(one, 'x', 6, "rank 2 (node0) ended normally, but too early");
}

/* Rank 1 computes for longer than the limit of heartbeats, and is then stopped, long before the time-out of calls.
 * Heartbeats come from a thread of their own: only the second is a failure. */
static void slow_then_stopped(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	struct vfm_hjob *j = ((struct vfm_hcomm *)w)->job;
	double t;

	CHECK(j->timeout == s->o.timeout_s && j->beat_timeout == (s->o.timeout_s < 30 ? s->o.timeout_s : 30));
	j->beat_timeout = 3; /* of every rank, before the first second is over */
	MUST(vfm_barrier(w, NULL, &err));
	t = vfm_now() + 4.5;
	while (rank == 1 && vfm_now() < t)
		;
	MUST(vfm_barrier(w, NULL, &err));
	if (rank == 1)
		raise(SIGSTOP);
	t = vfm_now();
	if (vfm_barrier(w, NULL, &err) < 0)
		say_and_exit(t);
	_exit(0);
}

static void stopped_ranks(void **state)
{
	struct setup s = {.n = 3, .o.timeout_s = 40};
	const char *want = "rank 1 (node0) has not answered for 3.";
	pid_t pid[RANKS];
	int st;

	(void)state;
	start(&s, pid, slow_then_stopped);
	for (int r = 0; r < s.n; r += 2) {
		waitpid(pid[r], &st, 0);
		if (!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], want) || sh->at[r] > 8)
			fail_msg("rank %d: status %#x, said '%s' after %.2f s", r, st, sh->said[r], sh->at[r]);
	}
	kill(pid[1], SIGKILL);
	waitpid(pid[1], &st, 0);
}

static void first_dies(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	double t = vfm_now();

	if (rank == 0)
		kill(getpid(), SIGKILL);
	if (vfm_barrier(w, NULL, &err) < 0)
		say_and_exit(t);
	exit(0);
}

static void rank_zero(void **state)
{
	struct setup s = {.n = 3, .o.timeout_s = 3};
	pid_t pid[RANKS];
	int st;

	(void)state;
	start(&s, pid, first_dies);
	for (int r = 0; r < s.n; r++) {
		waitpid(pid[r], &st, 0);
		if (r &&
			(!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], "rank 0 (node0) died") ||
				sh->at[r] > 1.5))
			fail_msg("rank %d: status %#x, said '%s' after %.2f s", r, st, sh->said[r], sh->at[r]);
	}
}

/* Rank `word` listens, takes part in the exchange, and then dies or (word >= STOPS) is stopped. */
enum { STOPS = 100 };
static void never_comes(const struct setup *s)
{
	struct vfm_endpoint *_Atomic known[RANKS] = {0};
	struct vfm_hjob j = {.l = &l, .rank = rank, .endpoint = known};
	double t = vfm_now();
	struct vfm_comm *w;

	place(s);
	if (rank == s->word % STOPS) {
		MUST(vfm_net_open(&j, &err));
		if (s->word >= STOPS)
			raise(SIGSTOP);
		_exit(0);
	}
	if (vfm_comm_host_new(&l, &s->o, &w, &err) < 0)
		say_and_exit(t);
	_exit(0);
}

static void one_is_missing(struct setup s, double within, const char *what)
{
	pid_t pid[RANKS];
	char want[200];
	int st;

	start(&s, pid, never_comes);
	for (int r = 0; r < s.n; r++) {
		if (r == s.word % STOPS)
			continue;
		waitpid(pid[r], &st, 0);
		snprintf(want, sizeof(want), "rank %d (node%d) %s", s.word % STOPS,
			s.per_node ? s.word % STOPS / s.per_node : 0, what);
		if (!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], want))
			fail_msg("without rank %d: rank %d: status %#x, said '%s'", s.word, r, st, sh->said[r]);
		if (sh->at[r] > within)
			fail_msg("without rank %d: rank %d needed %.2f s", s.word, r, sh->at[r]);
	}
	kill(pid[s.word % STOPS], SIGKILL);
	waitpid(pid[s.word % STOPS], &st, 0);
	print_message("%s (after %.2f s)\n", sh->said[s.word == 0], sh->at[s.word == 0]);
}

/* The time-out does not matter for a rank that has ended: nothing listens any more. */
static void missing_ranks(void **state)
{
	(void)state;
	for (int r = 0; r < 3; r++)
		one_is_missing((struct setup){.n = 3, .word = r, .o.timeout_s = 50}, 5, "ended before");
	for (int r = 0; r < 4; r++) /* rank 2 has the shared memory of its node */
		one_is_missing((struct setup){.n = 4, .per_node = 2, .word = r, .o.timeout_s = 50}, 5, "ended before");
	one_is_missing((struct setup){.n = 3, .word = STOPS + 1, .o.timeout_s = 3}, 8, "never connected within 3.");
}

/* Ranks that end at different times, without calls, are no failure. */
static void slow_end(const struct setup *s)
{
	struct vfm_comm *w = join(s);

	MUST(vfm_barrier(w, NULL, &err));
	usleep(rank == 0 ? 0 : (unsigned)(300000 * rank));
	leave(w);
}

static void ends_in_order(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 4, .o.timeout_s = 3}, slow_end);
}

static int setup_all(void **state)
{
	(void)state;
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGPIPE, SIG_IGN);
	return sh == MAP_FAILED || !mkdtemp(folder);
}

static int teardown_all(void **state)
{
	(void)state;
	vfm_rm_rf(folder, &err);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(collectives), cmocka_unit_test(two_nodes),
		cmocka_unit_test(large_shares), cmocka_unit_test(groups), cmocka_unit_test(at_once),
		cmocka_unit_test(on_streams), cmocka_unit_test(sixteen), cmocka_unit_test(same_bits),
		cmocka_unit_test(between_nodes), cmocka_unit_test(failures), cmocka_unit_test(stopped_ranks),
		cmocka_unit_test(rank_zero), cmocka_unit_test(missing_ranks), cmocka_unit_test(ends_in_order)};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
