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
	{"matrix", "the table of models, contexts and configurations", bench_matrix},
	{"step", "one training step of one model", bench_step},
	{"launches", "the launches of a training step, predicted", bench_launches},
	{"ops", "each operation of the device", bench_ops},
	{"calibrate", "the rates of this CPU, as a machine file", bench_calibrate},
	{"attn", "attention of samples of different lengths, packed and padded", bench_attn},
	{"cost", "the cost of samples by their length, for vfm-pack", bench_cost},
	{"exec", "measure the protocol of outside models", bench_exec},
	{"loader", "read the packs of a plan as training would", bench_loader},
	{"comm", "the collectives of several ranks", bench_comm},
	{"eval", "evaluate reconstructions and samples", bench_eval},
	{"plot", "draw the curves of one or more runs", bench_plot},
	{0},
};

static const struct vfm_verbs family = {
	.name = "vfm-bench",
	.word = "BENCH",
	.summary = "measure the parts of the toolkit",
	.list = benches,
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

void bench_note_machine(struct vfm_table *t, int threads)
{
	char cpu[256], with[32] = "";

	bench_cpu_name(cpu, sizeof(cpu));
	if (threads > 0)
		snprintf(with, sizeof(with), ", %d threads", threads);
	vfm_table_note(t, "measured on %s%s; vfm %s", cpu, with, vfm_version());
}

void bench_layout(const struct vfm_parallel *p, struct vfm_buf *out)
{
	static const char *const modes[] = {"ring", "a2a", "hybrid"};
	const struct {
		const char *name;
		int64_t n;
	} degree[] = {{"dp", p->dp}, {"tp", p->tp}, {"cp", p->cp}, {"pp", p->pp}, {"vpp", p->vpp}, {"ep", p->ep}};

	for (size_t i = 0; i < sizeof(degree) / sizeof(*degree); i++)
		if (degree[i].n > 1)
			vfm_buf_addf(out, "%s%s=%lld", out->len ? " " : "", degree[i].name, (long long)degree[i].n);
	if (p->cp > 1)
		vfm_buf_addf(out, " %s", modes[p->cp_mode]);
	if (p->pp > 1 && p->schedule == VFM_PP_ZB)
		vfm_buf_adds(out, " zb");
	if (p->fsdp || p->distopt)
		vfm_buf_adds(out, p->fsdp ? " fsdp" : " distopt");
}

static const struct {
	const char *key, *heading;
} fallback_columns[] = {{"slow_attn", "slow attn"}, {"slow_gemm", "slow gemm"}, {"heuristic_gemm", "heur gemm"}};

struct bench_fallbacks bench_fallbacks_of(const struct vfm_dev *d)
{
	return (struct bench_fallbacks){{d->slow_attn, d->slow_gemm, d->heuristic_gemm}};
}

void bench_fallback_columns(struct vfm_table *t)
{
	for (int i = 0; i < BENCH_FALLBACKS; i++)
		vfm_table_col(t, fallback_columns[i].key, fallback_columns[i].heading, 0);
}

void bench_fallback_cells(struct vfm_table *t, const struct vfm_dev *d, const struct bench_fallbacks *before)
{
	struct bench_fallbacks now = bench_fallbacks_of(d);

	for (int i = 0; i < BENCH_FALLBACKS; i++)
		vfm_table_i64(t, fallback_columns[i].key, now.n[i] - before->n[i]);
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
	const char *device, int repeat, enum vfm_table_format f, bench_fill fill, void *ctx, struct vfm_err *err)
{
	struct vfm_table *t = vfm_table_new();
	struct vfm_device d;
	int rc = vfm_device_open(&d, device, err);

	if (rc == 0) {
		vfm_table_note(
			t, "device %s: %s; median of %d runs after one to warm up", d.dev->name, d.dev->descr, repeat);
		rc = fill(t, d.stream, ctx, err);
		bench_fallback_notes(t, d.dev);
		bench_note_machine(t, vfm_par_threads());
		vfm_device_close(&d);
	}
	if (rc == 0)
		rc = vfm_table_print(t, f, stdout, err);
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
