#include "cuda/gemm_plan.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"

/* ---- ways ------------------------------------------------------------------------------------- */

static bool f8(enum vfm_dtype t)
{
	return t == VFM_F8E4M3 || t == VFM_F8E5M2;
}

/* The alignment that the library requires of aux. */
static bool aux_fits(const struct vfm_tensor *aux, const struct vfm_gemm_batch *batch)
{
	return !vfm_has(aux) || (aux->stride[0] % 8 == 0 && (uintptr_t)aux->data % 16 == 0 && batch->aux % 8 == 0);
}

int vfm_gemm_paths(
	const struct vfm_gemm *a, const struct vfm_gemm_batch *batch, struct vfm_gemm_path out[VFM_GEMM_PATHS])
{
	bool rowsum = vfm_has(&a->a_rowsum), gelu = a->act == VFM_ACT_GELU_TANH, dgelu = a->dact == VFM_ACT_GELU_TANH;
	unsigned epi = (vfm_has(&a->bias) ? VFM_LT_BIAS : 0u) | (gelu ? VFM_LT_GELU : 0u) |
		(gelu && vfm_has(&a->aux) ? VFM_LT_AUX : 0u) | (dgelu ? VFM_LT_DGELU : 0u);
	int n = 0;

	if (!epi && !a->act && !a->dact && rowsum && a->c.dtype == VFM_F32 && !f8(a->a.dtype) && batch->count == 1)
		out[n++] = (struct vfm_gemm_path){.epi = VFM_LT_BGRADB};
	if (a->act != VFM_ACT_SILU && a->dact != VFM_ACT_SILU && aux_fits(&a->aux, batch) &&
		!(epi & VFM_LT_DGELU && epi & VFM_LT_BIAS))
		out[n++] = (struct vfm_gemm_path){.epi = epi, .own_rowsum = rowsum};
	if (epi || a->act || a->dact || a->accumulate)
		out[n++] = (struct vfm_gemm_path){.own_epi = true, .own_rowsum = rowsum};
	return n;
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

struct vfm_lt_problem vfm_lt_problem_of(const struct vfm_gemm *a, const struct vfm_gemm_batch *batch, unsigned epi)
{
	size_t sa = vfm_dtype_size(a->a.dtype), sc = vfm_dtype_size(a->c.dtype);
	struct vfm_lt_problem p;

	memset(&p, 0, sizeof(p)); /* compared as bytes */
	p.a = a->b.dtype, p.b = a->a.dtype, p.c = a->c.dtype;
	p.ta = a->trans_b, p.tb = a->trans_a;
	p.beta = a->accumulate;
	p.epi = epi;
	p.scaled = vfm_has(&a->scale_a);
	/* forward only: the precision of gradients stays */
	p.fast8 = a->a.dtype == VFM_F8E4M3 && a->b.dtype == VFM_F8E4M3;
	p.bias = f8(p.a) && p.c == VFM_F32 ? VFM_BF16 : p.c;
	p.m = a->c.shape[1], p.n = a->c.shape[0], p.k = a->a.shape[a->trans_a ? 0 : 1];
	p.lda = a->b.stride[0], p.ldb = a->a.stride[0], p.ldc = a->c.stride[0];
	p.batch = batch->count;
	if (batch->count > 1) {
		p.stride_a = batch->b, p.stride_b = batch->a, p.stride_c = batch->c;
		p.stride_bias = batch->bias, p.stride_aux = batch->aux;
	}
	p.align_a = align_of(a->b.data, p.stride_a, vfm_dtype_size(a->b.dtype));
	p.align_b = align_of(a->a.data, p.stride_b, sa);
	p.align_c = align_of(a->c.data, p.stride_c, sc);
	if (epi & (VFM_LT_AUX | VFM_LT_DGELU)) {
		p.ld_aux = a->aux.stride[0];
		p.align_aux = align_of(a->aux.data, p.stride_aux, sc);
	}
	return p;
}

bool vfm_lt_bias_bf16(const struct vfm_lt_problem *p)
{
	return p->epi & VFM_LT_BIAS && p->bias == VFM_BF16;
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
}

void vfm_lt_rowsum_key(const struct vfm_gemm *a, char key[VFM_LT_KEY])
{
	snprintf(key, VFM_LT_KEY, "rowsum %s %c %ldx%ld", vfm_dtype_name(a->a.dtype), a->trans_a ? 't' : 'n',
		(long)vfm_lt_round(a->c.shape[0]), (long)vfm_lt_round(a->a.shape[a->trans_a ? 0 : 1]));
}

/* ---- the file ----------------------------------------------------------------------------------- */

static struct vfm_lt_entry **hash_slot(const struct vfm_lt_cache *c, const char *key)
{
	struct vfm_lt_entry **at = &c->bucket[vfm_fnv64(key, strlen(key)) % c->n_buckets];

	while (*at && strcmp((*at)->key, key) != 0)
		at = &(*at)->next;
	return at;
}

const struct vfm_lt_entry *vfm_lt_cache_find(const struct vfm_lt_cache *c, const char *key)
{
	return *hash_slot(c, key);
}

/* Grows to about as many buckets as entries. */
static void spread(struct vfm_lt_cache *c)
{
	struct vfm_lt_cache wide = {.n_buckets = 4 * c->n_buckets};

	wide.bucket = vfm_calloc(wide.n_buckets, sizeof(struct vfm_lt_entry *));
	for (size_t i = 0; i < c->n_buckets; i++)
		for (struct vfm_lt_entry *e = c->bucket[i], *next; e; e = next) {
			next = e->next;
			e->next = NULL;
			*hash_slot(&wide, e->key) = e;
		}
	free(c->bucket);
	c->bucket = wide.bucket;
	c->n_buckets = wide.n_buckets;
}

static const struct vfm_lt_entry *keep(struct vfm_lt_cache *c, const struct vfm_lt_entry *e)
{
	struct vfm_lt_entry **at = hash_slot(c, e->key), *have = *at;

	if (have)
		return have; /* the first entry counts */
	if (c->n >= 2 * c->n_buckets) {
		spread(c);
		at = hash_slot(c, e->key);
	}
	*at = vfm_malloc(sizeof(**at));
	**at = *e;
	(*at)->next = NULL;
	c->n++;
	return *at;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_line(const char *line, size_t len, struct vfm_lt_entry *e)
{
	json_t *o = vfm_json_parse(line, len, "", NULL);
	const char *key = NULL, *algo = NULL;
	int64_t v = 0;
	bool ok;

	memset(e, 0, sizeof(*e));
	ok = o && json_is_object(o) && vfm_json_i64(o, "", "v", true, 1, 1, &v, NULL) == 0 &&
		vfm_json_str(o, "", "key", true, &key, NULL) == 0 && strlen(key) < VFM_LT_KEY &&
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
	*c = (struct vfm_lt_cache){.path = path ? vfm_strdup(path) : NULL, .n_buckets = 1024};
	c->bucket = vfm_calloc(c->n_buckets, sizeof(struct vfm_lt_entry *));
	read_on(c);
}

void vfm_lt_cache_close(struct vfm_lt_cache *c)
{
	for (size_t i = 0; i < c->n_buckets; i++)
		for (struct vfm_lt_entry *e = c->bucket[i], *next; e; e = next) {
			next = e->next;
			free(e);
		}
	free(c->bucket);
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
	vfm_buf_addf(&line, "%s{\"v\":1,\"key\":\"%s\",\"algo\":\"", last == '\n' ? "" : "\n", e->key);
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
