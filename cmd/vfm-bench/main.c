/* vfm-bench - measures performance and prints tables. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/par.h"
#include "device/open/open.h"
#include "io/opt.h"
#include "bench.h"
#include "io/version.h"

static const struct vfm_verb benches[] = {
	{"matrix", "measure or predict a table of models, contexts and layouts", bench_matrix},
	{"step", "measure or predict one training step", bench_step},
	{"sample", "measure or predict the sampling of videos", bench_sample},
	{"launches", "predict the time of each kernel of a training step", bench_launches},
	{"ops", "time each operation of the device", bench_ops},
	{"calibrate", "measure this machine, and write a machine file", bench_calibrate},
	{"cost", "measure the cost of samples by their length, for vfm-pack", bench_cost},
	{"loader", "read the packs of a plan as training does", bench_loader},
	{"comm", "time the collectives of several ranks", bench_comm},
	{"eval", "evaluate reconstructions, samples and captions", bench_eval},
	{"plot", "draw the curves of training runs", bench_plot},
	{0},
};

static const struct vfm_verbs family = {
	.name = "vfm-bench",
	.word = "BENCH",
	.summary = "measure the parts of the toolkit",
	.example = "vfm-bench step --model dit-s",
	.list = benches,
	.pages = true,
};

void bench_cpu_name(char *name, size_t size)
{
	char line[512];
	FILE *f = fopen("/proc/cpuinfo", "r");

	snprintf(name, size, "unknown CPU");
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
			line[strcspn(line, "\n")] = 0;
			snprintf(name, size, "%s", strchr(line, ':') + 2);
			break;
		}
	if (f)
		fclose(f);
}

void bench_note_machine(struct vfm_table *t, int threads, const char *device, const char *descr)
{
	char cpu[256], with[32] = "";

	bench_cpu_name(cpu, sizeof(cpu));
	if (threads > 0)
		snprintf(with, sizeof(with), ", %d threads", threads);
	vfm_table_note(t, "measured on %s%s%s%s%s%s; vfm %s", cpu, with, device ? ", device " : "",
		device ? device : "", device ? ": " : "", device ? descr : "", vfm_version());
}

struct bench_fallbacks bench_fallbacks_of(const struct vfm_dev *d)
{
	return (struct bench_fallbacks){d->slow_attn, d->slow_gemm, d->heuristic_gemm};
}

void bench_fallback_cells(struct vfm_table *t, const struct vfm_dev *d, const struct bench_fallbacks *before)
{
	vfm_table_i64(t, "slow_attn", d->slow_attn - before->slow_attn);
	vfm_table_i64(t, "slow_gemm", d->slow_gemm - before->slow_gemm);
	vfm_table_i64(t, "heuristic_gemm", d->heuristic_gemm - before->heuristic_gemm);
}

void bench_fallback_notes(struct vfm_table *t, const struct vfm_dev *d)
{
	if (d->slow_attn)
		vfm_table_note(t,
			"%" PRId64 " calls of bf16 attention were computed by our own kernels, which are slow",
			d->slow_attn);
	if (d->slow_gemm)
		vfm_table_note(t, "the library refused the product or the epilogue of %" PRId64 " GEMMs", d->slow_gemm);
	if (d->heuristic_gemm)
		vfm_table_note(t, "%" PRId64 " GEMMs used the library's heuristic without timing", d->heuristic_gemm);
}

int bench_on_device(
	const char *device, int repeat, const struct vfm_table_opts *o, bench_fill fill, void *ctx, struct vfm_err *err)
{
	struct vfm_table *t = vfm_table_new(NULL);
	struct vfm_device d;
	int rc = vfm_device_open(&d, device, err);

	if (rc == 0) {
		vfm_table_note(t, "median of %d runs after one to warm up", repeat);
		rc = fill(t, d.stream, ctx, err);
		bench_fallback_notes(t, d.dev);
		bench_note_machine(t, vfm_par_threads(), d.dev->name, d.dev->descr);
		vfm_device_close(&d);
	}
	if (rc == 0)
		rc = vfm_table_print(t, o, stdout, err);
	vfm_table_free(t);
	return rc;
}

static int time_calls(struct vfm_case *c, struct vfm_stream *s, int calls, double *seconds, struct vfm_err *err)
{
	double start = vfm_now();

	for (int k = 0; k < calls; k++)
		TRY(vfm_case_run(c, s, err));
	TRY(s->dev->t->stream_sync(s, err));
	*seconds = (vfm_now() - start) / calls;
	return 0;
}

int bench_time_case(
	struct vfm_case *c, struct vfm_stream *s, int repeat, struct vfm_spread *seconds, struct vfm_err *err)
{
	const double least = 3e-3;
	double t, x[BENCH_REPEAT_MAX];
	int calls;

	TRY(time_calls(c, s, 1, &t, err)); /* first touch, primitives, threads */
	TRY(time_calls(c, s, 1, &t, err));
	calls = t >= least ? 1 : t > least / 1e4 ? (int)(least / t) + 1 : 10000;
	for (int i = 0; i < repeat; i++)
		TRY(time_calls(c, s, calls, &x[i], err));
	*seconds = vfm_spread_of(x, (size_t)repeat);
	return 0;
}

int bench_time_copies(struct vfm_stream *s, void *dst, const void *src, size_t n, bool to_host, int repeat,
	struct vfm_spread *seconds, struct vfm_err *err)
{
	const struct vfm_dev_table *t = s->dev->t;
	double x[BENCH_REPEAT_MAX], start;

	for (int i = -1; i < repeat; i++) { /* run -1 is the warmup */
		TRY(t->stream_sync(s, err));
		start = vfm_now();
		TRY(to_host ? t->to_host(s, dst, src, n, err) : t->to_device(s, dst, src, n, err));
		TRY(t->stream_sync(s, err));
		x[i < 0 ? 0 : i] = vfm_now() - start;
	}
	*seconds = vfm_spread_of(x, (size_t)repeat);
	return 0;
}

int bench_copy_speed(struct vfm_stream *s, size_t n, int repeat, double *bytes_s, struct vfm_err *err)
{
	char *p = vfm_dev_alloc(s, 2 * n, "the buffers of the copy benchmark", err);
	int rc = p ? s->dev->t->zero(s, p, 2 * n, err) : VFM_EENV;
	struct vfm_spread seconds;

	if (rc == 0)
		rc = bench_time_copies(s, p + n, p, n, false, repeat, &seconds, err);
	if (rc == 0)
		*bytes_s = 2 * (double)n / seconds.median;
	vfm_dev_free(s, p, 2 * n);
	return rc;
}

const char *const bench_collective_names[BENCH_COLLECTIVES] = {
	"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "exchange", "send", "barrier"};

int bench_call_collective(enum bench_collective what, struct vfm_comm *c, struct vfm_stream *s, enum vfm_dtype t,
	char *a, char *b, int64_t n, struct vfm_err *err)
{
	struct vfm_tensor x = vfm_t1(a, t, n), y = vfm_t1(b, t, n);
	int size = c->size, rank = c->rank, peer = rank ^ 1;

	switch (what) {
	case BENCH_ALL_REDUCE:
		return vfm_all_reduce(c, s, x, err);
	case BENCH_ALL_GATHER:
		return vfm_all_gather(c, s, vfm_t1(a, t, n / size), y, NULL, err);
	case BENCH_REDUCE_SCATTER:
		return vfm_reduce_scatter(c, s, x, vfm_t1(b, t, n / size), NULL, err);
	case BENCH_ALL_TO_ALL:
		return vfm_all_to_all(c, s, x, y, NULL, NULL, err);
	case BENCH_BROADCAST:
		return vfm_broadcast(c, s, x, 0, err);
	case BENCH_EXCHANGE:
		return vfm_exchange(c, s, x, (rank + 1) % size, y, (rank + size - 1) % size, err);
	case BENCH_SEND:
		return peer >= size ? 0 : rank < peer ? vfm_send(c, s, x, peer, err) : vfm_recv(c, s, y, peer, err);
	default:
		return vfm_barrier(c, s, err);
	}
}

int main(int argc, char **argv)
{
	static char matrix[] = "matrix";
	struct vfm_err err = {0};

	vfm_cmd_init(argv[0]);
	vfm_version_more = vfm_device_features;
	if (argc > 1 && !strcmp(argv[1], "--matrix"))
		argv[1] = matrix;
	return vfm_cmd_exit(vfm_verbs_run(&family, argc, argv, &err), &err);
}
