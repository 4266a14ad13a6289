/* The host communicator over forked ranks: every collective against a local computation, and many groups at once, on
 * one node and on two (node_of is synthetic, so that the traffic uses TCP). */
#include "comm/coll/comm_nodes.h"
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

/* More than one reduce_scatter within the node, the last one of fewer elements. */
static void sum_large(const struct setup *s, const struct vfm_comm_nodes *n, struct vfm_stream *on_stream, int64_t m)
{
	float *x = vfm_calloc((size_t)(m * size), sizeof(*x));
	size_t bytes = vfm_nodes_scratch(n, m, true), guard = 4096;
	char *scratch = vfm_malloc(bytes + guard);
	int64_t calls = vfm_comm_stats().calls;

	memset(scratch + bytes, 77, guard);
	for (int64_t i = 0; i < m * size; i++)
		x[i] = (float)f32_value(i, rank);
	MUST(vfm_nodes_reduce_scatter(n, on_stream, vfm_t1(x, VFM_F32, m * size), scratch, &err));
	CHECK(vfm_comm_stats().calls - calls == 2 + 1); /* two pieces; between nodes */
	for (int64_t i = m * rank; i < m * (rank + 1); i++)
		check_sum(s, i, x[i], 1);
	for (size_t i = 0; i < guard; i++)
		CHECK(scratch[bytes + i] == 77);
	free(scratch);
	free(x);
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
	if (s->word)
		sum_large(s, &n, st[0], s->word);
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
	all_well(&(struct setup){.n = 6, .per_node = 2, .word = 800001}, nodes_of);
	all_well(&(struct setup){.n = 3, .per_node = 1}, nodes_of);
	all_well(&(struct setup){.n = 5, .per_node = 2}, uneven_nodes);
	all_well(&(struct setup){.n = 3}, uneven_nodes);
}

static int setup_all(void **state)
{
	(void)state;
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGPIPE, SIG_IGN);
	return sh == MAP_FAILED;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(collectives), cmocka_unit_test(two_nodes),
		cmocka_unit_test(large_shares), cmocka_unit_test(groups), cmocka_unit_test(at_once),
		cmocka_unit_test(on_streams), cmocka_unit_test(sixteen), cmocka_unit_test(same_bits),
		cmocka_unit_test(between_nodes)};

	return cmocka_run_group_tests(tests, setup_all, NULL);
}
