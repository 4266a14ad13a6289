/* comm [-n RANKS] [--fault] DEVICE - tests the collectives of several ranks on device memory against values computed on
 * the host.
 *
 * VFM_COMM selects the transport (vfm-parallel(7)).  On one GPU "VFM_COMM=nccl comm -n 1 cuda" runs NCCL with one rank;
 * two ranks need VFM_CUDA_SHARE=1, and run "comm -n 2 cuda" over VFM_COMM=nccl (sockets) or staging (host memory).
 * --fault: the last rank does not enter a collective; all others must report it alike and exit.
 * Prints a JSON line per test; status 0, 1 if a test failed, or 3 if there is no device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "io/hash.h"
#include "io/opt.h"
#include "spec/model/dtype.h"
#include "train/job/context.h"

enum { MOST = 1 << 20, MAX_RANKS = 8 };

static const struct vfm_dev_table *t;
static struct vfm_context ctx;
static struct vfm_err err;
static struct vfm_stream *comm_stream;
static char *dev_a, *dev_b, *host; /* [8 MOST] bytes each */

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		if ((call) < 0) {                                                                                      \
			snprintf(why, len, "rank %d: %.200s: %.600s", ctx.job.launch.rank, #call, err.msg);            \
			return false;                                                                                  \
		}                                                                                                      \
	} while (0)

static double value(int r, int64_t i)
{
	return (double)((r * 5 + i * 3 + i / 7) % 13 - 6); /* sums of 8 are exact in bf16 */
}

static double sum(int n, int64_t i)
{
	double s = 0;

	for (int r = 0; r < n; r++)
		s += value(r, i);
	return s;
}

/* dev[n] = value(rank, first + i) */
static int fill(char *dev, enum vfm_dtype dt, int64_t n, int rank, int64_t first)
{
	size_t es = vfm_dtype_size(dt);

	for (int64_t i = 0; i < n; i++) {
		double v = value(rank, first + i);

		vfm_dtype_convert(dt, host + (size_t)i * es, VFM_F64, &v, 1);
	}
	TRY(t->to_device(ctx.device.stream, dev, host, (size_t)n * es, &err));
	return t->stream_sync(ctx.device.stream, &err); /* other streams read it next */
}

static int fetch(struct vfm_stream *s, const char *dev, enum vfm_dtype dt, int64_t n)
{
	TRY(t->to_host(s, host, dev, (size_t)n * vfm_dtype_size(dt), &err));
	return t->stream_sync(s, &err);
}

static double at(enum vfm_dtype dt, int64_t i)
{
	double v;

	vfm_dtype_to_f64(&v, dt, host + (size_t)i * vfm_dtype_size(dt), 1);
	return v;
}

#define SAME(i, want)                                                                                                  \
	do {                                                                                                           \
		if (at(dt, i) != (want)) {                                                                             \
			snprintf(why, len, "rank %d of '%s', %s, element %lld of %lld: %g, expected %g", c->rank,      \
				c->name, vfm_dtype_name(dt), (long long)(i), (long long)n, at(dt, i), (double)(want)); \
			return false;                                                                                  \
		}                                                                                                      \
	} while (0)

static bool all_reduce(struct vfm_comm *c, struct vfm_stream *s, enum vfm_dtype dt, int64_t n, char *why, size_t len)
{
	OK(fill(dev_a, dt, n, c->rank, 0));
	OK(vfm_all_reduce(c, s, vfm_t1(dev_a, dt, n), &err));
	OK(fetch(s, dev_a, dt, n));
	for (int64_t i = 0; i < n; i++)
		SAME(i, sum(c->size, i));
	return true;
}

/* how 0: equal; 1: uneven; 2: the first has none */
static int64_t shares(int size, int how, int64_t n, int64_t *count, int64_t *from)
{
	int64_t total = 0;

	for (int r = 0; r < size; r++) {
		count[r] = how == 0 ? n / size : how == 2 && r == 0 && size > 1 ? 0 : n / size - r;
		count[r] = count[r] < 0 ? 0 : count[r];
		from[r] = total;
		total += count[r];
	}
	return total;
}

static bool all_gather(struct vfm_comm *c, struct vfm_stream *s, enum vfm_dtype dt, int64_t most, int how,
	bool in_place, char *why, size_t len)
{
	int64_t count[MAX_RANKS], from[MAX_RANKS], n = shares(c->size, how, most, count, from), mine = count[c->rank];
	char *in = in_place ? dev_b + (size_t)from[c->rank] * vfm_dtype_size(dt) : dev_a;

	OK(fill(in, dt, mine, c->rank, 0));
	OK(vfm_all_gather(c, s, vfm_t1(in, dt, mine), vfm_t1(dev_b, dt, n), how ? count : NULL, &err));
	OK(fetch(s, dev_b, dt, n));
	for (int r = 0; r < c->size; r++)
		for (int64_t i = 0; i < count[r]; i++)
			SAME(from[r] + i, value(r, i));
	return true;
}

static bool reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, enum vfm_dtype dt, int64_t most, int how,
	bool in_place, char *why, size_t len)
{
	int64_t count[MAX_RANKS], from[MAX_RANKS], n = shares(c->size, how, most, count, from), mine = count[c->rank];
	char *out = in_place ? dev_a + (size_t)from[c->rank] * vfm_dtype_size(dt) : dev_b;

	OK(fill(dev_a, dt, n, c->rank, 0));
	OK(vfm_reduce_scatter(c, s, vfm_t1(dev_a, dt, n), vfm_t1(out, dt, mine), how ? count : NULL, &err));
	OK(fetch(s, out, dt, mine));
	for (int64_t i = 0; i < mine; i++)
		SAME(i, sum(c->size, from[c->rank] + i));
	return true;
}

/* Rank r sends n / size (+ r + k, uneven) elements to rank k. */
static bool all_to_all(
	struct vfm_comm *c, struct vfm_stream *s, enum vfm_dtype dt, int64_t most, int how, char *why, size_t len)
{
	int64_t send[MAX_RANKS], recv[MAX_RANKS], n = 0, n_in = 0, k = 0;

	for (int r = 0; r < c->size; r++) {
		send[r] = recv[r] = most / c->size + (how ? r + c->rank : 0);
		if (how == 2 && (r + c->rank) % 3 == 1)
			send[r] = recv[r] = 0;
		n_in += send[r];
	}
	n = n_in;
	OK(fill(dev_a, dt, n_in, c->rank, 0));
	OK(vfm_all_to_all(
		c, s, vfm_t1(dev_a, dt, n_in), vfm_t1(dev_b, dt, n), how ? send : NULL, how ? recv : NULL, &err));
	OK(fetch(s, dev_b, dt, n));
	for (int r = 0; r < c->size; r++) {
		int64_t first = 0;

		for (int q = 0; q < c->rank; q++) /* elements that r sent to lower ranks */
			first += how == 2 && (q + r) % 3 == 1 ? 0 : most / c->size + (how ? q + r : 0);
		for (int64_t i = 0; i < recv[r]; i++, k++)
			SAME(k, value(r, first + i));
	}
	return true;
}

static bool rest(struct vfm_comm *c, struct vfm_stream *s, int64_t n, char *why, size_t len)
{
	int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size, root = c->size - 1;
	enum vfm_dtype dt = VFM_I32;

	OK(fill(dev_a, dt, n, c->rank, 0));
	OK(vfm_broadcast(c, s, vfm_t1(dev_a, dt, n), root, &err));
	OK(fetch(s, dev_a, dt, n));
	for (int64_t i = 0; i < n; i++)
		SAME(i, value(root, i));
	OK(fill(dev_a, dt, n, c->rank, 0));
	OK(vfm_exchange(c, s, vfm_t1(dev_a, dt, n), next, vfm_t1(dev_b, dt, n), before, &err));
	OK(fetch(s, dev_b, dt, n));
	for (int64_t i = 0; i < n; i++)
		SAME(i, value(before, i));
	if (c->rank % 2 == 0 && c->rank + 1 < c->size)
		OK(vfm_send(c, s, vfm_t1(dev_a, dt, n), c->rank + 1, &err));
	else if (c->rank % 2)
		OK(vfm_recv(c, s, vfm_t1(dev_b, dt, n), c->rank - 1, &err));
	OK(fetch(s, dev_b, dt, n));
	for (int64_t i = 0; c->rank % 2 && i < n; i++)
		SAME(i, value(c->rank - 1, i));
	OK(vfm_barrier(c, s, &err));
	OK(t->stream_sync(s, &err));
	return true;
}

static bool everything(struct vfm_comm *c, struct vfm_stream *s, char *why, size_t len)
{
	static const int64_t sizes[] = {8, 1003, MOST};
	static const enum vfm_dtype sums[] = {VFM_F32, VFM_BF16, VFM_F64, VFM_I64};

	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		int64_t n = sizes[k];

		for (size_t i = 0; i < 4; i++)
			if (!all_reduce(c, s, sums[i], n, why, len))
				return false;
		for (int how = 0; how < 3; how++)
			if (!all_gather(c, s, VFM_BF16, n, how, how == 1, why, len) ||
				!all_gather(c, s, VFM_F32, n, how, how != 1, why, len) ||
				!reduce_scatter(c, s, VFM_F32, n, how, how == 1, why, len) ||
				!reduce_scatter(c, s, VFM_BF16, n, how, how != 1, why, len) ||
				!all_to_all(c, s, VFM_F32, n, how, why, len))
				return false;
		if (!rest(c, s, n, why, len))
			return false;
	}
	return true;
}

/* Collective.  Rank 0 prints the result; returns false on all ranks if one found an error. */
static bool report(const char *name, bool good, const char *why, double since)
{
	double now = vfm_now();
	struct vfm_err e = {0};
	int rc = good ? 0 : vfm_fail(&e, VFM_EENV, "%s", why);

	rc = vfm_job_agree(&ctx.job, rc, &e);
	if (ctx.job.launch.rank == 0)
		printf("{\"check\": \"comm\", \"name\": \"%s\", \"device\": \"%s\", \"over\": \"%s\", \"ranks\": %d, "
		       "\"ok\": %s, \"s\": %.2f%s%s%s}\n",
			name, ctx.device.dev->name, vfm_comm_backend(ctx.world), ctx.job.world->size,
			rc < 0 ? "false" : "true", now - since, rc < 0 ? ", \"why\": \"" : "", rc < 0 ? e.msg : "",
			rc < 0 ? "\"" : "");
	fflush(stdout);
	return rc >= 0;
}

static bool check(const char *name, struct vfm_comm *c, struct vfm_stream *s)
{
	char why[VFM_ERR_MAX] = "";
	double since = vfm_now();
	bool good = !c || everything(c, s, why, sizeof(why));

	return report(name, good, why, since);
}

static bool check_groups(void)
{
	struct vfm_comm *part = NULL;
	bool good;

	if (vfm_comm_split(ctx.world, ctx.world->rank % 2, -ctx.world->rank, "part", &part, &err) < 0)
		return report("split", false, err.msg, vfm_now());
	good = check("groups", part, ctx.device.stream);
	vfm_comm_free(part);
	return good;
}

/* ---- registered and unregistered buffers: same bits, and the time of each ---- */

enum { N_BIG = 64 << 20, N_SMALL = 1 << 18, TIMES = 5 };
static const char *const big_name[] = {"all_reduce", "reduce_scatter", "all_gather"};

/* As in training: f32 gradients and bf16 weights, both in place. */
static int big_call(int op, char *p, int64_t n)
{
	int64_t each = n / ctx.world->size, at = each * ctx.world->rank;

	if (op == 0)
		return vfm_all_reduce(ctx.world, comm_stream, vfm_t1(p, VFM_F32, n), &err);
	if (op == 1)
		return vfm_reduce_scatter(
			ctx.world, comm_stream, vfm_t1(p, VFM_F32, n), vfm_t1(p + at * 4, VFM_F32, each), NULL, &err);
	return vfm_all_gather(
		ctx.world, comm_stream, vfm_t1(p + at * 2, VFM_BF16, each), vfm_t1(p, VFM_BF16, n), NULL, &err);
}

/* Returns the median seconds of a call and the result of the first; x: [n] f32 on the host. */
static int big_run(int op, char *p, int64_t n, float *x, uint64_t *bits, double *took)
{
	int64_t from = op == 1 ? n / ctx.world->size * ctx.world->rank : 0, m = op == 1 ? n / ctx.world->size : n,
		es = op == 2 ? 2 : 4;
	double s[TIMES];

	for (int64_t i = 0; i < n; i++)
		if (op == 2)
			((uint16_t *)x)[i] = vfm_f32_to_bf16((float)value(ctx.world->rank, i));
		else
			x[i] = (float)value(ctx.world->rank, i);
	TRY(t->to_device(ctx.device.stream, p, x, (size_t)(n * es), &err));
	TRY(t->stream_sync(ctx.device.stream, &err));
	TRY(big_call(op, p, n));
	TRY(t->stream_sync(comm_stream, &err));
	TRY(t->to_host(ctx.device.stream, x, p + from * es, (size_t)(m * es), &err));
	TRY(t->stream_sync(ctx.device.stream, &err));
	*bits = vfm_fnv64(x, (size_t)(m * es));
	for (int i = 0; i < TIMES; i++) {
		double since;

		TRY(vfm_barrier(ctx.world, NULL, &err));
		since = vfm_now();
		TRY(big_call(op, p, n));
		TRY(t->stream_sync(comm_stream, &err));
		s[i] = vfm_now() - since;
	}
	for (int i = 1; i < TIMES; i++)
		for (int k = i; k > 0 && s[k] < s[k - 1]; k--) {
			double y = s[k];

			s[k] = s[k - 1];
			s[k - 1] = y;
		}
	*took = s[TIMES / 2];
	return 0;
}

static int big_memory(struct vfm_comm_mem *m, struct vfm_comm *kind, int64_t n)
{
	TRY(vfm_comm_mem_new(m, kind, ctx.device.stream, (size_t)n * 4, "gradients", &err));
	return vfm_comm_mem_register(m, ctx.world, &err);
}

static bool check_known(void)
{
	int64_t n = (ctx.device.plugin ? N_BIG : N_SMALL) / (16 * ctx.world->size) * 16 * ctx.world->size;
	struct vfm_comm_mem plain = {0}, known = {0};
	float *x = vfm_malloc((size_t)n * 4);
	bool good = true;
	int rc;

	rc = big_memory(&plain, vfm_comm_self(), n);
	if (rc >= 0)
		rc = big_memory(&known, ctx.world, n);
	for (int op = 0; op < 3 && good; op++) {
		double took[2] = {0};
		uint64_t bits[2] = {0};

		if (rc >= 0)
			rc = big_run(op, plain.p, n, x, &bits[0], &took[0]);
		if (rc >= 0)
			rc = big_run(op, known.p, n, x, &bits[1], &took[1]);
		if (rc >= 0 && bits[0] != bits[1])
			rc = vfm_fail(&err, VFM_EENV, "different bits in registered buffers");
		good = vfm_job_agree(&ctx.job, rc, &err) >= 0;
		if (ctx.job.launch.rank == 0)
			printf("{\"check\": \"comm\", \"name\": \"registered %s\", \"device\": \"%s\", \"over\": "
			       "\"%s\", \"ranks\": %d, \"ok\": %s, "
			       "\"bytes\": %lld, \"registered\": %s, \"plain_ms\": %.3f, \"registered_ms\": "
			       "%.3f%s%s%s}\n",
				big_name[op], ctx.device.dev->name, vfm_comm_backend(ctx.world), ctx.world->size,
				good ? "true" : "false", (long long)n * (op == 2 ? 2 : 4),
				known.n_registered ? "true" : "false", took[0] * 1e3, took[1] * 1e3,
				good ? "" : ", \"why\": \"", good ? "" : err.msg, good ? "" : "\"");
		fflush(stdout);
	}
	vfm_comm_mem_release(&known);
	vfm_comm_mem_release(&plain);
	free(x);
	return good;
}

/* The last rank does not enter the collective; the others must fail with the same message. */
static int fault(void)
{
	char want[64];
	double since = vfm_now();
	int rc;

	snprintf(want, sizeof(want), "rank %d (", ctx.world->size - 1);
	if (ctx.world->rank == ctx.world->size - 1) {
		sleep(8);
		_exit(vfm_barrier(ctx.job.world, NULL, &err) == VFM_EENV ? 0 : 1); /* it also learns of the failure */
	}
	rc = vfm_all_reduce(ctx.world, comm_stream, vfm_t1(dev_a, VFM_F32, MOST), &err);
	if (rc >= 0)
		rc = t->stream_sync(comm_stream, &err);
	if (ctx.world->rank == 0)
		printf("{\"check\": \"comm\", \"name\": \"fault\", \"device\": \"%s\", \"over\": \"%s\", \"ranks\": "
		       "%d, \"ok\": %s, \"s\": %.2f, \"said\": \"%s\"}\n",
			ctx.device.dev->name, vfm_comm_backend(ctx.world), ctx.world->size,
			rc == VFM_EENV && strstr(err.msg, want) ? "true" : "false", vfm_now() - since,
			rc < 0 ? err.msg : "");
	fflush(stdout);
	_exit(rc == VFM_EENV && strstr(err.msg, want) ? 0 : 1);
}

static int run(const char *device, bool with_fault)
{
	static struct vfm_context_opts opts = VFM_CONTEXT_OPTS_INIT;
	bool good;

	opts.device = device;
	ctx.opts = &opts;
	if (vfm_context_device(&ctx, false, &err) < 0)
		return ctx.device.dev ? 1 : 3;
	t = ctx.device.dev->t;
	comm_stream = t->stream_new(ctx.device.dev, true, &err);
	dev_a = vfm_dev_alloc(ctx.device.stream, (size_t)MOST * 8 + 4096, "an operand", &err);
	dev_b = vfm_dev_alloc(ctx.device.stream, (size_t)MOST * 8 + 4096, "a result", &err);
	host = vfm_malloc((size_t)MOST * 8 + 4096);
	if (!comm_stream || !dev_a || !dev_b)
		return 1;
	if (with_fault)
		return fault();
	good = check("compute stream", ctx.world, ctx.device.stream);
	good = good && check("communication stream", ctx.world, comm_stream);
	good = good && check_groups();
	good = good && check_known();
	t->stream_free(comm_stream);
	vfm_dev_free(ctx.device.stream, dev_a, (size_t)MOST * 8 + 4096);
	vfm_dev_free(ctx.device.stream, dev_b, (size_t)MOST * 8 + 4096);
	free(host);
	vfm_context_close(&ctx);
	return good ? 0 : 1;
}

int main(int argc, char **argv)
{
	int64_t ranks = 2;
	bool with_fault = false;
	struct vfm_opt opts[] = {
		{VFM_OPT_INT, 'n', "ranks", "N", "ranks, at most 8 (2)", &ranks},
		{VFM_OPT_FLAG, 0, "fault", NULL, "the last rank does not enter a collective", &with_fault},
		{0},
	};
	struct vfm_cmd cmd = {.name = "comm",
		.synopsis = "[-n N] [--fault] DEVICE",
		.summary = "test the collectives of a device",
		.opts = opts};
	int n, rc;

	vfm_cmd_init(argv[0]);
	rc = vfm_opt_parse(&cmd, argc, argv, &n, &err);
	if (rc == 0 && (n != 1 || ranks < 1 || ranks > MAX_RANKS))
		rc = vfm_fail(&err, VFM_EUSAGE, "expected a device, and 1 to 8 ranks (comm -h)");
	if (rc != 0)
		return vfm_cmd_exit(rc == VFM_OPT_DONE ? 0 : rc, &err);
	if (with_fault)
		setenv("VFM_COMM_TIMEOUT_S", "4", 0);
	rc = vfm_job_start(&ctx.job, ranks > 1 ? (int)ranks : 0, NULL, &err);
	if (rc == 1)
		return ctx.job.launch.status;
	if (rc < 0)
		return vfm_cmd_exit(rc, &err);
	rc = run(argv[1], with_fault);
	if (rc) {
		if (err.msg[0])
			fprintf(stderr, "comm: rank %d: %s\n", ctx.job.launch.rank, err.msg);
		vfm_job_failed(&ctx.job, VFM_EENV, &err);
		_exit(rc);
	}
	vfm_job_end(&ctx.job, 0, &err);
	return 0;
}
