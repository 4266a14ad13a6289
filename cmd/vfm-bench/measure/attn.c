/* vfm-bench attn - times attention over samples of different lengths in two layouts: packed (concatenated), and padded
 * to slots of equal size, where the kernels also compute the padding. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/par.h"
#include "io/opt.h"
#include "bench.h"
#include "device/ops/cases.h"

enum { MAX_SAMPLES = 65536, MAX_ROWS = 1 << 22 };

static struct {
	int64_t heads, kv_heads, dim, slot, repeat, threads;
	int bf16; /* or fp32 */
	enum vfm_table_format format;
	const char *device;
} o = {.heads = 12, .dim = 64, .repeat = 11, .bf16 = true, .device = "cpu"};

static const struct vfm_opt opts[] = {
	{VFM_OPT_INT, 0, "heads", "N", "of queries (12)", &o.heads, 1, 1024},
	{VFM_OPT_INT, 0, "kv-heads", "N", "key and value heads (as many as heads)", &o.kv_heads, 1, 1024},
	{VFM_OPT_INT, 0, "dim", "N", "of a head (64)", &o.dim, 8, 128},
	{VFM_OPT_INT, 0, "slot", "N", "rows of a padded sample (the longest length)", &o.slot, 1, MAX_ROWS},
	{VFM_OPT_NAME, 0, "dtype", "fp32|bf16", "of the operands (bf16)", &o.bf16},
	{VFM_OPT_STR, 0, "device", "NAME", "where to compute (cpu)", &o.device},
	{VFM_OPT_INT, 'r', "repeat", "N", "runs of each; the median counts (11)", &o.repeat, 1, BENCH_REPEAT_MAX},
	{VFM_OPT_INT, 't', "threads", "N", "computing threads (those of the process)", &o.threads, 1, 4096},
	{VFM_OPT_NAME, 'o', "output", VFM_TABLE_FORMATS, "how to print the table", &o.format},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench attn",
	.synopsis = "[OPTION ...] [LENGTH ...]",
	.summary = "time attention of samples of different lengths, packed and padded",
	.opts = opts,
};

/* The samples: len[n] rows each; at[n] rows each with padding. */
struct mix {
	int n, *len, *at;
	int64_t rows, longest;
};

/* Parses "1024" (one sample) or "8x256" (eight samples). */
static int add_lengths(struct mix *m, const char *word, struct vfm_err *err)
{
	const char *x = strchr(word, 'x');
	int64_t count = 1, len;
	char head[32] = "";

	if (x) {
		if ((size_t)(x - word) >= sizeof(head))
			return vfm_fail(err, VFM_EUSAGE, "'%s' is not a length", word);
		memcpy(head, word, (size_t)(x - word));
		TRY(vfm_parse_i64(head, 1, MAX_SAMPLES, &count, err));
	}
	TRY(vfm_parse_size(x ? x + 1 : word, &len, err));
	if (len > MAX_ROWS || m->n + count > MAX_SAMPLES)
		return vfm_fail(err, VFM_EUSAGE, "'%s': at most %d samples of %d rows", word, MAX_SAMPLES, MAX_ROWS);
	for (int64_t i = 0; i < count; i++)
		m->len[m->n++] = (int)len;
	m->rows += count * len;
	if (len > m->longest)
		m->longest = len;
	return 0;
}

static int lengths(struct mix *m, char **words, int n, struct vfm_err *err)
{
	static char some[][8] = {"1024", "2x512", "4x256", "8x64"};

	m->len = vfm_calloc(MAX_SAMPLES, sizeof(*m->len));
	m->at = vfm_calloc(MAX_SAMPLES, sizeof(*m->at));
	for (int i = 0; i < (n ? n : 4); i++)
		if (add_lengths(m, n ? words[i] : some[i], err) < 0)
			return vfm_err_context(err, "%s", n ? words[i] : some[i]);
	if (!o.slot)
		o.slot = m->longest;
	if (m->n == 0 || m->longest == 0 || o.slot < m->longest || o.slot > MAX_ROWS / m->n)
		return vfm_fail(err, VFM_EUSAGE,
			"%d samples of at most %" PRId64 " rows do not fit into slots of %" PRId64
			" (--slot; at most %d rows in all)",
			m->n, m->longest, o.slot, MAX_ROWS);
	for (int i = 0; i < m->n; i++)
		m->at[i] = (int)o.slot;
	return 0;
}

enum how { PACKED, PADDED, HOWS };
static const char *const names[HOWS] = {"packed", "padded"};

/* Adds the cases of a layout: forward and backward. */
static void cases_of(struct vfm_cases *l, const struct mix *m, enum how how, enum vfm_dtype t)
{
	const int *len = how == PADDED ? m->at : m->len;

	vfm_case_attn(l, VFM_CASE_BENCH, names[how], t, t, m->n, len, len, o.heads, o.kv_heads, o.dim);
}

static void add_attn_row(struct vfm_table *t, const struct mix *m, const struct vfm_case *c, enum how how, double flops,
	double packed_s, struct vfm_spread seconds)
{
	double s = seconds.median;

	vfm_table_row(t);
	vfm_table_str(t, "layout", names[how]);
	vfm_table_str(t, "pass", c->op == VFM_OP_attn ? "forward" : "backward");
	vfm_table_i64(t, "rows", c->seqs[0].total);
	vfm_table_f64(t, "padding", 1 - (double)m->rows / (double)c->seqs[0].total);
	vfm_table_f64(t, "ms", s * 1e3);
	vfm_table_f64(t, "ms_min", seconds.min * 1e3);
	vfm_table_f64(t, "ms_max", seconds.max * 1e3);
	vfm_table_f64(t, "gflop_s", flops / s / 1e9);
	vfm_table_f64(t, "tok_s", (double)m->rows / s);
	vfm_table_f64(t, "of_packed", s / packed_s);
	vfm_table_str(t, "kind", "measured");
}

static int time_mix(
	const struct mix *m, struct vfm_stream *s, enum vfm_dtype dt, struct vfm_table *t, struct vfm_err *err)
{
	struct vfm_spread seconds;
	double flops[2] = {0}, packed[2] = {0};
	struct vfm_cases l = {0};
	int rc = 0;

	for (enum how h = PACKED; h < HOWS; h++)
		cases_of(&l, m, h, dt);
	for (size_t i = 0; i < l.n && rc == 0; i++) {
		struct vfm_case *c = l.v[i];
		enum how how = (enum how)(i / 2);

		rc = vfm_case_alloc(c, s, 1, err);
		if (rc == 0)
			rc = bench_time_case(c, s, (int)o.repeat, &seconds, err);
		vfm_case_free(c, s);
		if (rc < 0) {
			vfm_err_context(err, "%s", c->name);
			break;
		}
		if (how == PACKED) { /* FLOPs without padding */
			flops[i % 2] = vfm_case_cost(c).flops;
			packed[i % 2] = seconds.median;
		}
		add_attn_row(t, m, c, how, flops[i % 2], packed[i % 2], seconds);
	}
	vfm_cases_release(&l);
	return rc;
}

static const struct vfm_table_column columns[] = {{"layout", "layout", 0}, {"pass", "pass", 0}, {"rows", "rows", 0},
	{"padding", "padding", 2}, {"ms", "median ms", 3}, {"ms_min", "min ms", 3}, {"ms_max", "max ms", 3},
	{"gflop_s", "GFLOP/s", 1}, {"tok_s", "token/s", 0}, {"of_packed", "of packed", 2}, {"kind", "kind", 0}, {0}};

struct attn_asked {
	const struct mix *m;
	enum vfm_dtype dt;
};

static int fill_attn(struct vfm_table *t, struct vfm_stream *s, void *ctx, struct vfm_err *err)
{
	const struct attn_asked *a = ctx;
	const struct mix *m = a->m;

	vfm_table_columns(t, columns);
	TRY(time_mix(m, s, a->dt, t, err));
	vfm_table_note(t,
		"%d samples, %" PRId64 " tokens; %" PRId64 " heads (%" PRId64 " of keys) of %" PRId64
		", %s; slots of %" PRId64 " rows",
		m->n, m->rows, o.heads, o.kv_heads, o.dim, o.bf16 ? "bf16" : "fp32", o.slot);
	vfm_table_note(t, "GFLOP/s and token/s exclude padding; of packed: time relative to the packed layout");
	vfm_table_note(t, "the other operations of a layer process all rows, including padding");
	return 0;
}

int bench_attn(int argc, char **argv, struct vfm_err *err)
{
	struct mix m = {0};
	int n = 0, rc;

	TRY(rc = vfm_opt_parse(&cmd, argc, argv, &n, err));
	if (rc == VFM_OPT_DONE)
		return rc;
	if (!o.kv_heads)
		o.kv_heads = o.heads;
	if (o.heads % o.kv_heads || o.dim % 8)
		return vfm_fail(
			err, VFM_EUSAGE, "expected --heads, a multiple of --kv-heads, and --dim, a multiple of 8");
	if (o.threads)
		vfm_par_set_threads((int)o.threads);
	rc = lengths(&m, argv + 1, n, err);
	if (rc == 0)
		rc = bench_on_device(o.device, (int)o.repeat, o.format, fill_attn,
			&(struct attn_asked){&m, o.bf16 ? VFM_BF16 : VFM_F32}, err);
	free(m.len);
	free(m.at);
	return rc;
}
