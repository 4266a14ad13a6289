/* gemm_plan.c - paths of a GEMM, names of problems, and the cache file of timed choices. */
#include "device/cuda/gemm.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json.h"
#include "base/mem.h"

/* ---- paths ------------------------------------------------------------------------------------ */

static bool f8(enum vfm_dtype t)
{
	return t == VFM_F8E4M3 || t == VFM_F8E5M2;
}

/* The alignment that the library requires of aux. */
static bool aux_fits(const struct vfm_tensor *aux, const struct vfm_gemm_batch *batch)
{
	return !vfm_has(aux) || (aux->stride[0] % 8 == 0 && (uintptr_t)aux->data % 16 == 0 && batch->aux % 8 == 0);
}

int vfm_gemm_sms(int all, int comm)
{
	return comm > 0 && comm <= all / 2 ? all - comm : 0;
}

double vfm_gemm_side_flops(int all, double peak, double gb_s)
{
	/* Products of an H200 reach four fifths of its peak: 6 TFLOP/s of a multiprocessor, which moves perhaps 60
	 * GB/s.  A quarter of the multiprocessors of an RTX 4090 would move more than its memory does. */
	double flops = peak > 0 ? 0.8 * peak * 1e12 / all : 6e12, quarter = gb_s * 1e9 / (all / 4.0);

	return 3 * flops / (gb_s > 0 && quarter < 60e9 ? quarter : 60e9);
}

/* Returns whether the library can add the bias: with fp8 operands it takes a bias in bf16 only, which must not round
 * the bias of an f32 result. */
static bool library_adds_bias(const struct vfm_gemm *a)
{
	return !(f8(a->a.dtype) && a->c.dtype == VFM_F32 && a->bias.dtype == VFM_F32);
}

unsigned vfm_gemm_whole_epilogue(const struct vfm_gemm_op *op, const char **why)
{
	const struct vfm_gemm *a = &op->g;
	bool gelu = a->act == VFM_ACT_GELU_TANH, dgelu = a->dact == VFM_ACT_GELU_TANH, bias = vfm_has(&a->bias);

	*why = NULL;
	if (a->act == VFM_ACT_SILU || a->dact == VFM_ACT_SILU)
		return 0;
	if (!aux_fits(&a->aux, &op->batch)) {
		*why = "aux is not aligned to 16 bytes";
		return 0;
	}
	if (bias && (dgelu || !library_adds_bias(a)))
		return 0;
	return (bias ? VFM_LT_BIAS : 0u) | (gelu ? VFM_LT_GELU : 0u) | (gelu && vfm_has(&a->aux) ? VFM_LT_AUX : 0u) |
		(dgelu ? VFM_LT_DGELU : 0u);
}

int vfm_gemm_paths(const struct vfm_gemm_op *op, struct vfm_gemm_path out[VFM_GEMM_PATHS])
{
	const struct vfm_gemm *a = &op->g;
	bool sums = vfm_has(&a->a_rowsum), bias = vfm_has(&a->bias), rest = bias || a->act || a->dact;
	const char *why;
	unsigned whole = vfm_gemm_whole_epilogue(op, &why);
	int n = 0;

	if (sums && !rest && a->c.dtype == VFM_F32 && !f8(a->a.dtype) && op->batch.count == 1)
		out[n++] = (struct vfm_gemm_path){.epi = VFM_LT_BGRADB};
	if (whole || !rest)
		out[n++] = (struct vfm_gemm_path){.epi = whole, .own_rowsum = sums};
	if (bias && a->act && library_adds_bias(a))
		out[n++] = (struct vfm_gemm_path){.epi = VFM_LT_BIAS, .own_epi = true, .own_rowsum = sums};
	if (rest)
		out[n++] = (struct vfm_gemm_path){.own_epi = true, .own_rowsum = sums};
	if (op->batch.count == 1)
		out[n++] = (struct vfm_gemm_path){.own_epi = true, .f32 = true, .own_rowsum = sums};
	return n;
}

/* The two numbers of a path in the file never change their meaning. */
unsigned vfm_gemm_path_code(const struct vfm_gemm_path *p)
{
	return p->epi | (p->own_epi ? 256u : 0u) | (p->f32 ? 512u : 0u) | (p->own_rowsum ? 1024u : 0u);
}

bool vfm_gemm_path_of_code(const struct vfm_gemm_op *op, unsigned code, struct vfm_gemm_path *p)
{
	struct vfm_gemm_path all[VFM_GEMM_PATHS];
	int n = vfm_gemm_paths(op, all);

	for (int i = 0; i < n; i++)
		if (vfm_gemm_path_code(&all[i]) == code) {
			*p = all[i];
			return true;
		}
	return false;
}

const struct vfm_tensor *vfm_gemm_product_of(const struct vfm_gemm *g, const struct vfm_gemm_path *path)
{
	return path->own_epi && g->act && vfm_has(&g->aux) ? &g->aux : &g->c;
}

static int align_of(const void *p, int64_t stride, size_t size)
{
	uintptr_t x = (uintptr_t)p | (uintptr_t)stride * size;
	int a = 1;

	if (x % 256 == 0)
		return 256;
	while (a < 16 && x % (uintptr_t)(2 * a) == 0)
		a *= 2;
	return a;
}

/* The problem of op(A) op(B) with an epilogue; c receives it. */
static struct vfm_lt_problem problem_with(
	const struct vfm_gemm_op *op, unsigned epi, const struct vfm_tensor *c, int64_t batch_c)
{
	const struct vfm_gemm *a = &op->g;
	const struct vfm_gemm_batch *batch = &op->batch;
	size_t sa = vfm_dtype_size(a->a.dtype), sc = vfm_dtype_size(c->dtype);
	struct vfm_lt_problem p;

	memset(&p, 0, sizeof(p)); /* compared as bytes */
	p.a = a->b.dtype, p.b = a->a.dtype, p.c = c->dtype;
	p.ta = a->trans_b, p.tb = a->trans_a;
	p.beta = a->accumulate;
	p.epi = epi;
	p.scaled = vfm_has(&a->scale_a);
	p.tf32 = op->tf32 && p.a == VFM_F32;
	p.sms = op->sms;
	/* forward only: the precision of gradients stays */
	p.fast8 = a->a.dtype == VFM_F8E4M3 && a->b.dtype == VFM_F8E4M3;
	p.bias = f8(p.a) && p.c == VFM_F32 ? VFM_BF16 : p.c;
	p.m = c->shape[1], p.n = c->shape[0], p.k = a->a.shape[a->trans_a ? 0 : 1];
	p.lda = a->b.stride[0], p.ldb = a->a.stride[0], p.ldc = c->stride[0];
	p.batch = batch->count;
	if (batch->count > 1) {
		p.stride_a = batch->b, p.stride_b = batch->a, p.stride_c = batch_c;
		p.stride_bias = batch->bias, p.stride_aux = batch->aux;
	}
	p.align_a = align_of(a->b.data, p.stride_a, vfm_dtype_size(a->b.dtype));
	p.align_b = align_of(a->a.data, p.stride_b, sa);
	p.align_c = align_of(c->data, p.stride_c, sc);
	if (epi & (VFM_LT_AUX | VFM_LT_DGELU)) {
		p.ld_aux = a->aux.stride[0];
		p.align_aux = align_of(a->aux.data, p.stride_aux, sc);
	}
	return p;
}

struct vfm_lt_problem vfm_lt_problem_of(const struct vfm_gemm_op *op, const struct vfm_gemm_path *path)
{
	const struct vfm_tensor *c = vfm_gemm_product_of(&op->g, path);

	return problem_with(op, path->epi, c, c == &op->g.c ? op->batch.c : op->batch.aux);
}

bool vfm_lt_bias_differs(const struct vfm_lt_problem *p, const struct vfm_gemm *g)
{
	return p->epi & VFM_LT_BIAS && p->bias != g->bias.dtype;
}

/* ---- names ------------------------------------------------------------------------------------- */

int64_t vfm_lt_round(int64_t dim)
{
	int64_t step = 1;

	if (dim <= 64)
		return dim;
	while (dim / step >= 16)
		step *= 2;
	return (dim + step - 1) / step * step;
}

int64_t vfm_gemm_rows(const struct vfm_gemm *g)
{
	return g->trans_a ? g->a.shape[0] : g->c.shape[0];
}

void vfm_gemm_set_rows(struct vfm_gemm *g, int64_t n)
{
	g->a.shape[0] = n;
	if (g->trans_a) {
		g->b.shape[g->trans_b ? 1 : 0] = n;
		return;
	}
	g->c.shape[0] = n;
	if (vfm_has(&g->aux))
		g->aux.shape[0] = n;
}

bool vfm_gemm_round_rows(struct vfm_gemm_op *op)
{
	int64_t rows = vfm_gemm_rows(&op->g), n = vfm_lt_round(rows);

	/* a transposed B of the gradient of weights has its terms within its rows */
	if (n == rows || op->batch.count > 1 || (op->g.trans_a && op->g.trans_b))
		return false;
	vfm_gemm_set_rows(&op->g, n);
	return true;
}

void vfm_lt_key(const struct vfm_lt_problem *p, char key[VFM_LT_KEY])
{
	size_t sa = vfm_dtype_size(p->a), sb = vfm_dtype_size(p->b), sc = vfm_dtype_size(p->c);

	snprintf(key, VFM_LT_KEY, "%s-%s-%s %c%c %ldx%ldx%ld x%ld ld%d,%d,%d,%d align%d,%d,%d,%d epi%u%s%s%s%s",
		vfm_dtype_name(p->a), vfm_dtype_name(p->b), vfm_dtype_name(p->c), p->ta ? 't' : 'n', p->tb ? 't' : 'n',
		(long)vfm_lt_round(p->m), (long)vfm_lt_round(p->n), (long)vfm_lt_round(p->k),
		(long)vfm_lt_round(p->batch), align_of(NULL, p->lda, sa), align_of(NULL, p->ldb, sb),
		align_of(NULL, p->ldc, sc), p->ld_aux ? align_of(NULL, p->ld_aux, sc) : 0, p->align_a, p->align_b,
		p->align_c, p->align_aux, p->epi, p->beta ? " add" : "", p->tf32 ? " tf32" : "",
		p->fast8 ? " fast" : "", p->scaled ? " scaled" : "");
	if (p->sms)
		snprintf(key + strlen(key), VFM_LT_KEY - strlen(key), " sms%d", p->sms);
}

void vfm_gemm_key(const struct vfm_gemm_op *op, char key[VFM_LT_KEY])
{
	const struct vfm_gemm *g = &op->g;
	const char *why;
	unsigned whole = vfm_gemm_whole_epilogue(op, &why);
	struct vfm_lt_problem p = problem_with(op, whole, &g->c, op->batch.c);
	size_t n;

	vfm_lt_key(&p, key);
	n = strlen(key);
	/* what the epilogue of the library does not say */
	snprintf(key + n, VFM_LT_KEY - n, "%s%s%s%s%s", vfm_has(&g->a_rowsum) ? " sums" : "",
		vfm_has(&g->bias) && g->bias.dtype != p.bias ? " cast" : "", !whole && vfm_has(&g->bias) ? " bias" : "",
		!whole && vfm_has(&g->aux) ? " aux" : "",
		whole                                  ? ""
			: g->act == VFM_ACT_SILU       ? " silu"
			: g->dact == VFM_ACT_SILU      ? " dsilu"
			: g->act == VFM_ACT_GELU_TANH  ? " gelu"
			: g->dact == VFM_ACT_GELU_TANH ? " dgelu"
						       : "");
}

/* ---- the file ----------------------------------------------------------------------------------- */

static int compare_plan_keys(const void *a, const void *b)
{
	return strcmp(a, b);
}

const struct vfm_lt_entry *vfm_lt_cache_find(const struct vfm_lt_cache *c, const char *key)
{
	struct vfm_lt_entry *const *at = tfind(key, &c->tree, compare_plan_keys);

	return at ? *at : NULL;
}

/* Returns the first entry with this key, which counts. */
static const struct vfm_lt_entry *keep(struct vfm_lt_cache *c, const struct vfm_lt_entry *e)
{
	struct vfm_lt_entry *mine = vfm_malloc(sizeof(*mine)), **at;

	*mine = *e;
	at = tsearch(mine, &c->tree, compare_plan_keys);
	if (!at)
		vfm_out_of_memory();
	if (*at != mine)
		free(mine);
	return *at;
}

enum { VERSION = 2 }; /* 1: without the path, by the time of the product alone */

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_line(const char *line, size_t len, struct vfm_lt_entry *e)
{
	json_t *o = vfm_json_parse(line, len, "", NULL);
	const char *key = NULL, *algo = NULL;
	int64_t v = 0, path = 0;
	bool ok;

	memset(e, 0, sizeof(*e));
	ok = o && json_is_object(o) && vfm_json_i64(o, "", "v", true, VERSION, VERSION, &v, NULL) == 0 &&
		vfm_json_str(o, "", "key", true, &key, NULL) == 0 && strlen(key) < VFM_LT_KEY &&
		vfm_json_i64(o, "", "path", true, 0, 2047, &path, NULL) == 0 &&
		vfm_json_str(o, "", "algo", true, &algo, NULL) == 0 && strlen(algo) == 2 * VFM_LT_ALGO &&
		vfm_json_i64(o, "", "ws", true, 0, INT64_C(1) << 40, &e->ws, NULL) == 0 &&
		vfm_json_f64(o, "", "us", true, &e->us, NULL) == 0 && e->us >= 0;
	for (int i = 0; ok && i < VFM_LT_ALGO; i++) {
		int hi = hex_digit(algo[2 * i]), lo = hex_digit(algo[2 * i + 1]);

		ok = hi >= 0 && lo >= 0;
		e->algo[i] = ok ? (uint8_t)(hi << 4 | lo) : 0;
	}
	if (ok)
		memcpy(e->key, key, strlen(key) + 1);
	e->path = (unsigned)path;
	json_decref(o);
	return ok;
}

/* A larger file is ignored: it is not ours, or is corrupt. */
enum { MOST = 64 << 20 };

/* Reads the lines appended since the last call; the whole file if it has become shorter. */
static void read_on(struct vfm_lt_cache *c)
{
	struct vfm_lt_entry e;
	struct stat st;
	char *text;
	ssize_t got;
	/* do not block on a pipe */
	int fd = c->path ? open(c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;

	if (fd < 0)
		return;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > MOST)
		st.st_size = 0;
	else if (st.st_size < c->read)
		c->read = 0;
	if (st.st_size <= c->read) {
		close(fd);
		return;
	}
	text = vfm_malloc((size_t)(st.st_size - c->read));
	got = pread(fd, text, (size_t)(st.st_size - c->read), c->read);
	close(fd);
	for (ssize_t at = 0; at < got;) {
		const char *end = memchr(text + at, '\n', (size_t)(got - at));

		if (!end)
			break;
		if (parse_line(text + at, (size_t)(end - text - at), &e))
			keep(c, &e);
		c->read += end + 1 - (text + at);
		at = end + 1 - text;
	}
	free(text);
}

void vfm_lt_cache_open(struct vfm_lt_cache *c, const char *path)
{
	*c = (struct vfm_lt_cache){.path = path ? vfm_strdup(path) : NULL};
	read_on(c);
}

void vfm_lt_cache_close(struct vfm_lt_cache *c)
{
	tdestroy(c->tree, free);
	free(c->path);
	*c = (struct vfm_lt_cache){0};
}

/* Appends with one write; starts a new line if the last one is incomplete after a full disk. */
static bool append(const char *path, const struct vfm_lt_entry *e)
{
	struct vfm_buf line = {0};
	struct stat st;
	char last = '\n', *dir = vfm_strdup(path), *slash = strrchr(dir, '/');
	int fd;
	bool ok;

	if (slash && slash != dir) {
		*slash = 0;
		(void)vfm_mkdir_p(dir, NULL);
	}
	free(dir);
	fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
	if (fd < 0)
		return false;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > MOST - 4096) {
		close(fd);
		return false;
	}
	if (st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) != 1)
		last = '\n';
	vfm_buf_addf(&line, "%s{\"v\":%d,\"key\":\"%s\",\"path\":%u,\"algo\":\"", last == '\n' ? "" : "\n", VERSION,
		e->key, e->path);
	for (int i = 0; i < VFM_LT_ALGO; i++)
		vfm_buf_addf(&line, "%02x", e->algo[i]);
	vfm_buf_addf(&line, "\",\"ws\":%lld,\"us\":%.3f}\n", (long long)e->ws, e->us);
	ok = write(fd, line.data, line.len) == (ssize_t)line.len;
	ok = close(fd) == 0 && ok;
	vfm_buf_release(&line);
	return ok;
}

const struct vfm_lt_entry *vfm_lt_cache_add(struct vfm_lt_cache *c, const struct vfm_lt_entry *e, bool alone)
{
	const struct vfm_lt_entry *found;

	if (c->path && append(c->path, e)) {
		read_on(c);
		if (!vfm_lt_cache_find(c, e->key)) { /* the file has been replaced */
			c->read = 0;
			read_on(c);
		}
		found = vfm_lt_cache_find(c, e->key);
		if (found)
			return found;
	}
	return alone ? keep(c, e) : NULL;
}

void vfm_lt_cache_name(const char *device, size_t version, char *out, size_t len)
{
	char name[64];
	size_t n = 0;

	for (; *device && n + 1 < sizeof(name); device++)
		name[n++] = isalnum((unsigned char)*device) ? *device : '-';
	name[n] = 0;
	snprintf(out, len, "gemm-%s-%zu.jsonl", name, version);
}
