/* textbytes.c - sums random vectors, each drawn from the hash of an n-gram of the word, and adds its position. */
#include "encoder/text/textbytes.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/philox.h"
#include "io/hash.h"

#define CACHE_SLOTS 1024 /* direct-mapped; captions repeat few words */
#define WORD_KEPT   64   /* longer words are computed each time */
#define GRAM_BYTES  64   /* bounds the work for a hostile word */

struct word_slot {
	char *word; /* NULL: free */
	float *row; /* [dim] */
};

struct vfm_textbytes {
	int dim;
	float *tmp; /* [dim], the n-gram sum */
	struct word_slot cache[CACHE_SLOTS];
};

int vfm_textbytes_new(struct vfm_textbytes **out, const char *spec, struct vfm_err *err)
{
	struct vfm_textbytes *t;
	int64_t dim = VFM_TEXT_DIM;

	if (strncmp(spec, "bytes", 5) != 0 || (spec[5] && spec[5] != ':'))
		return vfm_fail(err, VFM_EUSAGE, "unknown text encoder '%s': expected bytes or bytes:DIM", spec);
	if (spec[5] == ':' && vfm_parse_i64(spec + 6, 1, VFM_TEXT_DIM_MAX, &dim, err) < 0)
		return vfm_err_context(err, "text encoder '%s'", spec);
	t = vfm_calloc(1, sizeof(*t));
	t->dim = (int)dim;
	t->tmp = vfm_calloc((size_t)dim, sizeof(float));
	*out = t;
	return 0;
}

void vfm_textbytes_free(struct vfm_textbytes *t)
{
	if (!t)
		return;
	for (int i = 0; i < CACHE_SLOTS; i++) {
		free(t->cache[i].word);
		free(t->cache[i].row);
	}
	free(t->tmp);
	free(t);
}

int vfm_textbytes_dim(const struct vfm_textbytes *t)
{
	return t->dim;
}

struct vfm_encoder_id vfm_textbytes_id(const struct vfm_textbytes *t)
{
	struct vfm_encoder_id m = {.version = VFM_TEXT_VERSION, .dim = t->dim};

	snprintf(m.name, sizeof(m.name), "bytes:%d", t->dim);
	return m;
}

static int is_word(unsigned char c)
{
	return c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Finds the next word from *p on; returns its length (0: none left) and moves *p to its first byte. */
static size_t next_word(const char **p)
{
	const char *s = *p;
	size_t n = 0;

	while (*s && ((unsigned char)*s <= ' ' || *s == 0x7f))
		s++;
	*p = s;
	while (is_word((unsigned char)s[n]))
		n++;
	return n ? n : *s != 0;
}

int vfm_textbytes_rows(const char *caption)
{
	int rows = 0;

	for (size_t n; rows < VFM_TEXT_ROWS && (n = next_word(&caption)) > 0; caption += n)
		rows++;
	return rows ? rows : 1;
}

static void add_normals(float *dst, int dim, const char *bytes, size_t n)
{
	struct vfm_rng rng = vfm_rng_stream(0, 0, vfm_fnv64(bytes, n), VFM_RNG_TEXT);
	float g[4];

	for (int i = 0; i < dim; i += 4) {
		vfm_rng_normal4(&rng, (uint64_t)i / 4, g);
		for (int k = 0; k < 4 && i + k < dim; k++)
			dst[i + k] += g[k];
	}
}

static double rms(const float *x, int n)
{
	double s = 0;

	for (int i = 0; i < n; i++)
		s += (double)x[i] * x[i];
	s = sqrt(s / n);
	return s > 1e-6 ? s : 1;
}

/* row [dim] of a lower-case word, without the position. */
static void word_row(struct vfm_textbytes *t, const char *word, size_t n, float *row)
{
	char *mark = vfm_malloc(n + 3);
	size_t m = n < GRAM_BYTES ? n : GRAM_BYTES;
	int grams = 0;
	double ra, rb;

	memset(t->tmp, 0, (size_t)t->dim * sizeof(float));
	memset(row, 0, (size_t)t->dim * sizeof(float));
	mark[0] = '<';
	memcpy(mark + 1, word, n);
	mark[m + 1] = '>';
	for (size_t g = 3; g <= 5; g++) {
		for (size_t i = 0; i + g <= m + 2; i++, grams++)
			add_normals(t->tmp, t->dim, mark + i, g);
	}
	mark[0] = '=';
	memcpy(mark + 1, word, n);
	add_normals(row, t->dim, mark, n + 1);
	free(mark);
	if (grams) {
		ra = 1 / rms(t->tmp, t->dim);
		rb = 1 / rms(row, t->dim);
		for (int i = 0; i < t->dim; i++)
			row[i] = (float)(t->tmp[i] * ra + row[i] * rb);
	}
	rb = 1 / rms(row, t->dim);
	for (int i = 0; i < t->dim; i++)
		row[i] = (float)(row[i] * rb);
}

static void cached_row(struct vfm_textbytes *t, const char *text, size_t n, float *row)
{
	size_t bytes = (size_t)t->dim * sizeof(float);
	char *word = vfm_malloc(n + 1);
	struct word_slot *s;

	for (size_t i = 0; i < n; i++)
		word[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] + 32) : text[i];
	word[n] = 0;
	s = &t->cache[vfm_fnv64(word, n) % CACHE_SLOTS];
	if (s->word && strcmp(s->word, word) == 0) {
		memcpy(row, s->row, bytes);
		free(word);
		return;
	}
	word_row(t, word, n, row);
	if (n > WORD_KEPT) {
		free(word);
		return;
	}
	free(s->word);
	s->word = word;
	if (!s->row)
		s->row = vfm_malloc(bytes);
	memcpy(s->row, row, bytes);
}

static void add_position(float *row, int dim, int pos)
{
	const double amp = 0.1 * sqrt(2);

	for (int i = 0; i < dim; i++) {
		int pair = i / 2;
		double a = pos / pow(10000, 2.0 * pair / dim);

		row[i] += (float)(amp * (i % 2 ? cos(a) : sin(a)));
	}
}

int vfm_textbytes_encode(struct vfm_textbytes *t, const char *caption, float *rows)
{
	int l = 0;
	size_t n;

	for (; l < VFM_TEXT_ROWS && (n = next_word(&caption)) > 0; caption += n, l++)
		cached_row(t, caption, n, rows + (size_t)l * (size_t)t->dim);
	if (l == 0)
		cached_row(t, "", 0, rows + (size_t)l++ * (size_t)t->dim);
	for (int i = 0; i < l; i++)
		add_position(rows + (size_t)i * (size_t)t->dim, t->dim, i);
	return l;
}
