/* comm_dev_tests.h - tests of device communicators (comm_dev.h) over a transport, and over staging.
 *
 * The file that includes it defines before:
 *   static const struct vfm_transport *const transport;
 *   static void make_library(void);    // to be called before the ranks fork
 * The transport works on the memory of CPU devices and is built on shm_transport.h, whose faults it has.
 */
#ifndef TESTS_UNIT_COMM_DEV_TESTS_H
#define TESTS_UNIT_COMM_DEV_TESTS_H

#include "comm/device/comm_dev.h"
#include "comm_ranks.h"
#include "device/ops/ops.h"

static struct vfm_dev *dev;
static struct vfm_stream *compute, *beside;
static const char *backend; /* VFM_COMM */
static char folder[] = "/tmp/vfm-comm-dev-XXXXXX";

static struct vfm_comm *join_dev(const struct setup *s, struct vfm_comm **host)
{
	struct vfm_comm_dev_opts o = {.transport = transport, .host_memory = true};
	struct vfm_comm *w;

	alarm(300); /* ends what waits in vain, on a busy machine, too */
	*host = join(s);
	dev = vfm_cpu_open(&err);
	CHECK(dev);
	o.compute = compute = dev->t->stream_new(dev, false, &err);
	beside = dev->t->stream_new(dev, true, &err);
	CHECK(compute && beside);
	setenv("VFM_COMM", backend, 1);
	MUST(vfm_comm_dev_new(*host, &o, &w, &err));
	if (s->n > 1 && strcmp(backend, "host") != 0)
		CHECK(w != *host && w->host == *host && w->size == s->n && w->rank == rank &&
			!strcmp(w->name, "world"));
	return w;
}

static void leave_dev(struct vfm_comm *w, struct vfm_comm *host)
{
	dev->t->stream_free(beside);
	vfm_comm_dev_free(w, host);
	dev->t->stream_free(compute);
	CHECK(dev->mem_now == 0);
	dev->t->dev_free(dev);
	leave(host);
}

static void beside_compute(struct vfm_comm *c, int64_t round)
{
	on = beside;
	everything(c, round);
	on = NULL;
}

static void rounds(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host);

	for (int64_t round = 0; round < 9; round++) {
		on = compute;
		everything(w, round);
		on = NULL;
		everything(w, round); /* of host memory */
		if (s->n > 1)
			beside_compute(w, round);
	}
	leave_dev(w, host);
}

static void collectives(void **state)
{
	(void)state;
	for (int k = 0; k < 2; k++) {
		backend = k ? "staging" : transport->name;
		for (int n = 1; n <= 6; n++) {
			make_library();
			all_well(&(struct setup){.n = n}, rounds);
		}
		make_library();
		all_well(&(struct setup){.n = 4, .per_node = 2}, rounds);
	}
}

/* bf16 is summed in f32 in rank order and rounded once, with the same bits on all ranks. */
static void bf16_bits(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host);
	enum { N = 1003 };
	uint16_t mine[N], x[N], *all = vfm_malloc((size_t)size * sizeof(mine));

	for (int k = 0; k < 2; k++) {
		struct vfm_stream *st = k ? beside : compute;

		for (int i = 0; i < N; i++)
			x[i] = mine[i] = vfm_f32_to_bf16((float)(1 + rank + k) * 0.37f + (float)(i % 97) * 0.0113f);
		MUST(vfm_all_gather(
			w, NULL, vfm_t1(mine, VFM_BF16, N), vfm_t1(all, VFM_BF16, (int64_t)size * N), NULL, &err));
		MUST(vfm_all_reduce(w, st, vfm_t1(x, VFM_BF16, N), &err));
		MUST(dev->t->stream_sync(st, &err));
		for (int i = 0; i < N; i++) {
			float sum = 0;

			for (int r = 0; r < size; r++)
				sum += vfm_bf16_to_f32(all[r * N + i]);
			CHECK(x[i] == vfm_f32_to_bf16(sum));
		}
	}
	/* A stream that runs on a host thread refuses ops and does not run them at once. */
	CHECK(vfm_op_axpby(beside,
		      &(struct vfm_axpby){.alpha = 1, .x = vfm_t1(mine, VFM_BF16, N), .y = vfm_t1(x, VFM_BF16, N)},
		      &err) == VFM_EUSAGE);
	free(all);
	leave_dev(w, host);
}

static void sums(void **state)
{
	(void)state;
	backend = transport->name;
	make_library();
	all_well(&(struct setup){.n = 5}, bf16_bits);
}

/* Calls are enqueued ahead of the stream, on several groups at once, and the caller frees its counts before they run.
 */
static void ahead(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host), *c[2];
	struct vfm_stream *st[2];
	enum { CALLS = 70, N = 3000 };
	float *in[2], *out[2];

	for (int k = 0; k < 2; k++) {
		MUST(vfm_comm_split(w, 0, 0, "ahead", &c[k], &err));
		st[k] = dev->t->stream_new(dev, true, &err);
		in[k] = vfm_calloc(N, sizeof(float));
		out[k] = vfm_calloc((size_t)CALLS * N * (size_t)size, sizeof(float));
		for (int i = 0; i < N; i++)
			in[k][i] = (float)value(VFM_F32, k, rank, i);
	}
	for (int i = 0; i < CALLS; i++)
		for (int k = 0; k < 2; k++) {
			int64_t count[RANKS];

			for (int r = 0; r < size; r++)
				count[r] = N - r;
			MUST(vfm_all_gather(c[k], st[k], vfm_t1(in[k], VFM_F32, N - rank),
				vfm_t1(out[k] + i * N * size, VFM_F32, (int64_t)N * size - size * (size - 1) / 2),
				count, &err));
			memset(count, -1, sizeof(count));
		}
	for (int k = 0; k < 2; k++) {
		MUST(dev->t->stream_sync(st[k], &err));
		for (int i = 0; i < CALLS; i++)
			for (int r = 0, at = 0; r < size; at += N - r, r++)
				CHECK(out[k][i * N * size + at] == (float)value(VFM_F32, k, r, 0) &&
					out[k][i * N * size + at + N - r - 1] ==
						(float)value(VFM_F32, k, r, N - r - 1));
		dev->t->stream_free(st[k]);
		vfm_comm_free(c[k]);
		free(in[k]);
		free(out[k]);
	}
	leave_dev(w, host);
}

static void run_ahead(void **state)
{
	(void)state;
	for (int k = 0; k < 2; k++) {
		backend = k ? "staging" : transport->name;
		make_library();
		all_well(&(struct setup){.n = 3}, ahead);
	}
}

static void splits(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host);

	on = compute;
	splits_of(w);
	on = NULL;
	leave_dev(w, host);
}

static void groups(void **state)
{
	(void)state;
	for (int k = 0; k < 2; k++) {
		backend = k ? "staging" : transport->name;
		make_library();
		all_well(&(struct setup){.n = 4}, splits);
		make_library();
		all_well(&(struct setup){.n = 7}, splits);
		make_library();
		all_well(&(struct setup){.n = 6, .per_node = 3}, splits);
	}
}

/* ---- registered buffers ---- */

/* All ranks register a buffer or none does; every failure ends the call. */
static void known_memory(const struct setup *s)
{
	struct vfm_comm *host, *w, *c;
	struct vfm_comm_mem m = {0}, one = {0}, empty = {0};
	int how = s->word, calls;
	bool special;

	if (how == 'o' && rank == 0) /* the setting of rank 0 applies */
		setenv("VFM_COMM_REGISTER", "0", 1);
	w = join_dev(s, &host);
	shmt_no_mem = how == 'm' && rank == 1;
	shmt_no_register = how == 'r' && rank == 1;
	special = !strcmp(backend, transport->name) && how != 'o' && !shmt_no_mem;
	MUST(vfm_comm_split(w, rank % 2, 0, "half", &c, &err));
	MUST(vfm_comm_mem_new(&m, w, compute, 100003, "operands", &err));
	MUST(vfm_comm_mem_new(&one, vfm_comm_self(), compute, 64, "a buffer of one rank", &err));
	CHECK(m.p && (uintptr_t)m.p % 64 == 0 && vfm_comm_mem_from_transport(&m) == special &&
		!vfm_comm_mem_from_transport(&one));
	CHECK(dev->mem_now >= 100003 + 64 && dev->mem_peak >= dev->mem_now);
	MUST(vfm_comm_mem_register(&m, w, &err));
	MUST(vfm_comm_mem_register(&m, c, &err));
	MUST(vfm_comm_mem_register(&one, w, &err));
	MUST(vfm_comm_mem_register(&empty, c, &err));
	MUST(vfm_comm_mem_register(&m, vfm_comm_self(), &err));
	if (!strcmp(backend, transport->name) && how == 'w')
		CHECK(shmt_registered_now == 1 + (c->size > 1));
	else if (how == 'r' || how == 'm') /* no rank of the other half was refused */
		CHECK(shmt_registered_now == (size == 1) + (rank % 2 == 0 && c->size > 1));
	else
		CHECK(shmt_registered_now == 0);
	calls = shmt_registered_calls;
	memset(m.p, 0, m.bytes);
	for (int i = 0; i < 1000; i++)
		((float *)m.p)[i] = (float)value(VFM_F32, 1, rank, i);
	MUST(vfm_all_reduce(w, compute, vfm_t1(m.p, VFM_F32, 1000), &err));
	for (int i = 0; i < 1000; i++) {
		float sum = 0;

		for (int r = 0; r < size; r++)
			sum += (float)value(VFM_F32, 1, r, i);
		CHECK(((float *)m.p)[i] == sum);
	}
	CHECK((shmt_registered_calls > calls) == (special && how == 'w' && size > 1));
	if (how == 'w' && !strcmp(backend, transport->name) && rank == 1) /* one rank releases it before the others */
		vfm_comm_abort(host, "the disk is full");
	vfm_comm_mem_release(&m);
	vfm_comm_mem_release(&m);
	vfm_comm_mem_release(&one);
	CHECK(!m.p && shmt_registered_now == 0 && shmt_mem_now == 0);
	vfm_comm_free(c);
	leave_dev(w, host);
}

static void memory(void **state)
{
	static const char hows[] = "wrmo";

	(void)state;
	for (int k = 0; hows[k]; k++)
		for (int n = 1; n <= 5; n += 2) {
			struct setup s = {.n = n, .word = hows[k]};

			backend = transport->name;
			make_library();
			all_well(&s, known_memory);
		}
	backend = "staging";
	all_well(&(struct setup){.n = 3, .word = 'w'}, known_memory);
}

/* ---- which backend ---- */

static void choosing(const struct setup *s)
{
	struct vfm_comm *host = join(s), *w;
	struct vfm_comm_dev_opts o = {.transport = transport};
	char expected[64];

	snprintf(expected, sizeof(expected), "expected host, %s, staging, got 'mpi'", transport->name);
	dev = vfm_cpu_open(&err);
	o.compute = dev->t->stream_new(dev, false, &err);
	unsetenv("VFM_COMM");
	MUST(vfm_comm_dev_new(host, &o, &w, &err));
	CHECK(!strcmp(w->t->name, "transport"));
	vfm_comm_dev_free(w, host);

	shmt_no_id = true;
	CHECK(vfm_comm_dev_new(host, &o, &w, &err) == VFM_EENV &&
		strstr(err.msg, "shm: no plug")); /* the error of rank 0, on all ranks */
	shmt_no_id = false;

	shmt_same_device = true;
	MUST(vfm_comm_dev_new(host, &o, &w, &err));
	CHECK(!strcmp(w->t->name, "staging"));
	vfm_comm_dev_free(w, host);

	setenv("VFM_COMM", transport->name, 1);
	CHECK(vfm_comm_dev_new(host, &o, &w, &err) == VFM_EUSAGE &&
		strstr(err.msg, "ranks 0 and 1 have the same device"));
	setenv("VFM_CUDA_SHARE", "1", 1);
	MUST(vfm_comm_dev_new(host, &o, &w, &err));
	CHECK(!strcmp(w->t->name, "transport"));
	vfm_comm_dev_free(w, host);

	setenv("VFM_COMM", "host", 1);
	CHECK(vfm_comm_dev_new(host, &o, &w, &err) == VFM_EUSAGE);
	o.host_memory = true;
	MUST(vfm_comm_dev_new(host, &o, &w, &err));
	CHECK(w == host);
	setenv("VFM_COMM", "mpi", 1);
	CHECK(vfm_comm_dev_new(host, &o, &w, &err) == VFM_EUSAGE && strstr(err.msg, expected));
	unsetenv("VFM_COMM");
	MUST(vfm_comm_dev_new(host, &o, &w, &err));
	CHECK(w == host);
	dev->t->stream_free(o.compute);
	dev->t->dev_free(dev);
	leave(host);
}

static void choice(void **state)
{
	(void)state;
	make_library();
	all_well(&(struct setup){.n = 2}, choosing);
}

/* ---- failures ---- */

static void say_and_exit(double since)
{
	snprintf(sh->said[rank], sizeof(sh->said[rank]), "%s", err.msg);
	sh->at[rank] = vfm_now() - since;
	_exit(3);
}

/* Until a signal ends the process: whoever reports this rank did not wait for it. */
static void hang(void)
{
	for (;;)
		pause();
}

/* Rank 2 fails from round 5 on, as word[1] says: 'k' is killed, 'h' makes no call, 'd' has a busy device, 'a' aborts,
 * 'w' has a failing library.  word[2] selects the stream. */
static int device_hangs(void *arg, struct vfm_err *e)
{
	(void)arg, (void)e;
	hang();
	return 0;
}

static void until_it_breaks(const struct setup *s)
{
	struct vfm_comm *host, *w = join_dev(s, &host);
	struct vfm_stream *st = sh->word[2] == 'c' ? compute : beside;
	float x[64] = {0};
	double t;

	for (int round = 1;; round++) {
		int rc = 0;

		t = vfm_now();
		if (rank == 2 && round == 5)
			switch ((int)sh->word[1]) {
			case 'k':
				kill(getpid(), SIGKILL);
				break;
			case 'h':
				hang();
				break;
			case 'd':
				rc = st->dev->t->host_call(st, device_hangs, NULL, 0, &err);
				break;
			case 'a':
				vfm_comm_abort(host, "the disk is full");
				break;
			case 'w':
				atomic_store(&shmt_broken, true);
				break;
			default:
				break;
			}
		if (rc >= 0)
			rc = vfm_all_reduce(w, st, vfm_t1(x, VFM_F32, 64), &err);
		if (rc >= 0)
			rc = dev->t->stream_sync(st, &err); /* of the compute stream, too */
		if (rc < 0)
			break;
		usleep(1000);
	}
	/* later calls fail as well */
	snprintf(sh->said[rank], sizeof(sh->said[rank]), "%s", err.msg);
	CHECK(vfm_all_reduce(w, st, vfm_t1(x, VFM_F32, 64), &err) == VFM_EENV && !strcmp(err.msg, sh->said[rank]));
	CHECK(vfm_all_reduce(w, NULL, vfm_t1(x, VFM_F32, 64), &err) == VFM_EENV && !strcmp(err.msg, sh->said[rank]));
	CHECK(dev->t->stream_sync(compute, &err) == VFM_EENV && !strcmp(err.msg, sh->said[rank]));
	if (sh->word[1] != 'd') {
		dev->t->stream_free(beside);
		vfm_comm_dev_free(w, host); /* does not hang */
	}
	say_and_exit(t);
}

/* Rank 2 dies after the check of the devices; the others wait for it, or for the library's id. */
static void dies_before_the_id(const struct setup *s)
{
	double t = vfm_now();
	struct vfm_comm *host, *w;

	setenv("VFM_COMM", transport->name, 1);
	setenv("VFM_CUDA_SHARE", "1", 1);
	shmt_same_device = true;
	shmt_dies = rank == 2;
	host = join(s);
	dev = vfm_cpu_open(&err);
	struct vfm_comm_dev_opts o = {.transport = transport, .compute = dev->t->stream_new(dev, false, &err)};
	if (vfm_comm_dev_new(host, &o, &w, &err) < 0)
		say_and_exit(t);
	exit(0);
}

static void early_deaths(void **state)
{
	struct setup s = {.n = 4, .o.timeout_s = 40};
	pid_t pid[RANKS];
	int st;

	(void)state;
	make_library();
	start(&s, pid, dies_before_the_id);
	for (int r = 0; r < s.n; r++) {
		waitpid(pid[r], &st, 0);
		if (r != 2 &&
			(!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], "rank 2 (node0) died") ||
				sh->at[r] >= s.o.timeout_s))
			fail_msg("rank %d: status %#x, said '%s' after %.2f s", r, st, sh->said[r], sh->at[r]);
	}
}

static void recorded(int r, const char *why)
{
	char *text, want[VFM_ERR_MAX + 32], path[128];
	size_t n;

	snprintf(path, sizeof(path), "%s/flight-%d.jsonl", folder, r);
	assert_int_equal(vfm_read_file(path, 1 << 20, &text, &n, &err), 0);
	snprintf(want, sizeof(want), "\"why\":\"%.100s", why);
	assert_non_null(strstr(text, want));
	assert_non_null(
		strstr(text, "\"group\":\"world\",\"number\":4,\"kind\":\"all_reduce\",\"bytes\":256,\"start_s\":"));
	free(text);
	unlink(path);
}

/* What is announced, as by the end of a process, must not need the timeout, which is long enough for a busy machine; of
 * what is not, the timeout is short. */
static void breaks(int how, int where, const char *what)
{
	const bool announced = strchr("ka", how);
	struct setup s = {.n = 4, .o = {.timeout_s = announced ? 60 : 2, .recorder_dir = folder}};
	pid_t pid[RANKS];
	int st;

	backend = transport->name;
	make_library();
	memset(sh, 0, sizeof(*sh));
	start(&s, pid, until_it_breaks);
	sh->word[2] = where;
	sh->word[1] = how;
	for (int r = 0; r < s.n; r++) {
		if (r == 2 && strchr("hd", how))
			continue;
		waitpid(pid[r], &st, 0);
		if (how == 'k' && r == 2)
			continue;
		if (!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], what) ||
			strcmp(sh->said[r], sh->said[0]) != 0)
			fail_msg("'%c': rank %d: status %#x, said '%s'", how, r, st, sh->said[r]);
		if (announced && sh->at[r] >= s.o.timeout_s)
			fail_msg("'%c': rank %d needed %.2f s", how, r, sh->at[r]);
		recorded(r, sh->said[r]);
	}
	print_message("%c%c: %s (after %.2f s)\n", how, where, sh->said[0], sh->at[0]);
	if (strchr("hd", how)) {
		kill(pid[2], SIGKILL);
		waitpid(pid[2], &st, 0);
	}
}

static void failures(void **state)
{
	(void)state;
	breaks('k', 'a', "rank 2 (node0) died");
	breaks('k', 'c', "rank 2 (node0) died");
	breaks('h', 'a', "rank 2 (node0) hangs: it has not reached all_reduce number 5 of 'world'");
	breaks('h', 'c', "rank 2 (node0) hangs: it has not reached all_reduce number 5 of 'world'");
	breaks('d', 'a', "rank 2 (node0)");
	breaks('a', 'a', "rank 2 (node0) failed: the disk is full");
	breaks('a', 'c', "rank 2 (node0) failed: the disk is full");
	breaks('w', 'a', ": shm: the cable is out");
}

static int set_up(void **state)
{
	(void)state;
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return sh == MAP_FAILED || !mkdtemp(folder);
}

static int clean_up(void **state)
{
	(void)state;
	vfm_rm_rf(folder, &err);
	return 0;
}

static int run_comm_dev_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(collectives),
		cmocka_unit_test(sums),
		cmocka_unit_test(run_ahead),
		cmocka_unit_test(groups),
		cmocka_unit_test(memory),
		cmocka_unit_test(choice),
		cmocka_unit_test(early_deaths),
		cmocka_unit_test(failures),
	};

	return cmocka_run_group_tests(tests, set_up, clean_up);
}

#endif
