/* parquet_values.c - the encodings of values (parquet-format, Encodings.md). */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate/table/parquet_impl.h"

enum { MAX_BLOCK = 1 << 20, MAX_TEXT = 256 << 20 };

/* Returns the bytes of each value; 0: they vary. */
static size_t value_width(const struct parquet_leaf *leaf)
{
	static const uint8_t bytes[PT_TYPES] = {
		[PT_INT32] = 4, [PT_INT64] = 8, [PT_INT96] = 12, [PT_FLOAT] = 4, [PT_DOUBLE] = 8};

	return leaf->type == PT_FIXED ? (size_t)leaf->width : bytes[leaf->type];
}

static bool is_bytes(const struct parquet_leaf *leaf)
{
	return leaf->type == PT_BYTE_ARRAY || leaf->type == PT_FIXED || leaf->type == PT_INT96;
}

static void set_bytes(struct vfm_cell *cell, const void *s, size_t len)
{
	cell->type = VFM_CELL_TEXT;
	cell->text.s = s;
	cell->text.len = len;
}

const char *parquet_encoding_name(int64_t encoding)
{
	static const char *const names[] = {"PLAIN", "an unknown encoding", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED",
		"DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY",
		"BYTE_STREAM_SPLIT"};

	return encoding >= 0 && encoding < (int64_t)(sizeof(names) / sizeof(names[0])) ? names[encoding] : names[1];
}

static int fail_short(struct vfm_err *err)
{
	return vfm_fail(err, VFM_EINPUT, "a page has fewer values than its header says");
}

/* Reads `width` <= 64 bits from bit `at` of p, the lowest first.  They lie within the data. */
static uint64_t read_bits(const uint8_t *p, uint64_t at, int width)
{
	uint64_t v = 0;
	int have = -(int)(at & 7);

	for (p += at >> 3; have < width; p++, have += 8)
		v |= have < 0 ? (uint64_t)*p >> -have : (uint64_t)*p << have;
	return width < 64 ? v & (((uint64_t)1 << width) - 1) : v;
}

static uint64_t read_bytes_le(const uint8_t *p, int bytes)
{
	return read_bits(p, 0, 8 * bytes);
}

/* ---- hybrid ---- */

void parquet_hybrid_init(struct parquet_hybrid *h, const uint8_t *p, size_t n, int width)
{
	*h = (struct parquet_hybrid){.p = p, .end = p + n, .width = width};
}

/* Begins the next run or group.  Writers may cut the padding of the last group. */
static bool begin_run(struct parquet_hybrid *h)
{
	struct vfm_thrift t = {.p = h->p, .end = h->end};
	uint64_t head = vfm_thrift_varint(&t), bytes, available;

	if (t.bad)
		return false;
	if (head & 1) {
		available = (uint64_t)(h->end - t.p);
		bytes = head >> 1 > available ? available : (head >> 1) * (uint64_t)h->width;
		bytes = bytes > available ? available : bytes;
		h->packed = bytes * 8 / (uint64_t)h->width;
		h->p = h->packed ? t.p : t.p + bytes;
		h->bit = 0;
		return true;
	}
	bytes = ((uint64_t)h->width + 7) / 8;
	if (bytes > (uint64_t)(h->end - t.p))
		return false;
	h->repeats = head >> 1;
	h->value = read_bytes_le(t.p, (int)bytes);
	h->p = t.p + bytes;
	return true;
}

bool parquet_hybrid_next(struct parquet_hybrid *h, uint32_t *v)
{
	*v = 0;
	if (h->width == 0)
		return true;
	while (!h->repeats && !h->packed)
		if (!begin_run(h))
			return false;
	if (h->repeats) {
		h->repeats--;
		*v = (uint32_t)h->value;
		return true;
	}
	*v = (uint32_t)read_bits(h->p, h->bit, h->width);
	h->bit += (uint64_t)h->width;
	if (--h->packed == 0) {
		h->p += (h->bit + 7) / 8;
		h->bit = 0;
	}
	return true;
}

/* ---- deltas ---- */

static int begin_delta(struct parquet_delta *d, const uint8_t *p, const uint8_t *end, struct vfm_err *err)
{
	*d = (struct parquet_delta){.in = {.p = p, .end = end}, .first = true};
	d->block = vfm_thrift_varint(&d->in);
	d->minis = vfm_thrift_varint(&d->in);
	d->left = vfm_thrift_varint(&d->in);
	d->last = (uint64_t)vfm_thrift_zigzag(&d->in);
	if (d->in.bad || d->block < 8 || d->block > MAX_BLOCK || d->minis < 1 || d->block % d->minis != 0 ||
		d->block / d->minis % 8 != 0)
		return vfm_fail(err, VFM_EINPUT, "damaged deltas");
	d->mini = d->minis;
	return 0;
}

static bool begin_miniblock(struct parquet_delta *d)
{
	uint64_t n = d->block / d->minis, bytes, available;

	if (d->mini == d->minis) {
		d->min = (uint64_t)vfm_thrift_zigzag(&d->in);
		if (d->in.bad || d->minis > (uint64_t)(d->in.end - d->in.p))
			return false;
		d->widths = d->in.p;
		d->in.p += d->minis;
		d->mini = 0;
	}
	d->width = d->widths[d->mini++];
	if (d->width > 64)
		return false;
	/* The values that are needed must be complete, the padding need not. */
	available = (uint64_t)(d->in.end - d->in.p);
	bytes = n * (uint64_t)d->width / 8;
	if (((d->left < n ? d->left : n) * (uint64_t)d->width + 7) / 8 > available)
		return false;
	d->bits = d->in.p;
	d->in.p += bytes < available ? bytes : available;
	d->in_mini = n;
	d->bit = 0;
	return true;
}

static bool next_delta(struct parquet_delta *d, int64_t *v)
{
	*v = 0;
	if (!d->left)
		return false;
	if (d->first) {
		d->first = false;
	} else {
		if (!d->in_mini && !begin_miniblock(d))
			return false;
		d->last += d->min + read_bits(d->bits, d->bit, d->width);
		d->bit += (uint64_t)d->width;
		d->in_mini--;
	}
	d->left--;
	*v = (int64_t)d->last;
	return true;
}

/* Returns where the data behind the numbers begin; NULL: they are damaged. */
static const uint8_t *end_of_delta(struct parquet_delta d)
{
	uint64_t n = d.block / d.minis;

	d.left -= d.left > 0; /* the first is in the header */
	while (d.left) {
		if (!begin_miniblock(&d))
			return NULL;
		d.left -= d.left < n ? d.left : n;
	}
	return d.in.p;
}

/* ---- plain values ---- */

static void set_number(struct vfm_cell *cell, const struct parquet_leaf *leaf, uint64_t bits)
{
	uint32_t low = (uint32_t)bits;
	float x;

	cell->type = VFM_CELL_INT;
	if (leaf->type == PT_INT32) {
		cell->i = leaf->form == PF_UNSIGNED ? (int64_t)low : (int32_t)low;
	} else if (leaf->type == PT_INT64) {
		cell->i = (int64_t)bits;
	} else if (leaf->type == PT_FLOAT) {
		cell->type = VFM_CELL_REAL;
		memcpy(&x, &low, 4);
		cell->x = (double)x;
	} else {
		cell->type = VFM_CELL_REAL;
		memcpy(&cell->x, &bits, 8);
	}
}

/* Reads a plain number or text at p, and sets *next behind it. */
static int read_plain(struct vfm_cell *cell, const struct parquet_leaf *leaf, const uint8_t *p, const uint8_t *end,
	const uint8_t **next, struct vfm_err *err)
{
	size_t n = leaf->type == PT_BYTE_ARRAY ? 4 : value_width(leaf), len;

	if (n > (size_t)(end - p))
		return fail_short(err);
	*next = p + n;
	if (leaf->type != PT_BYTE_ARRAY) {
		if (is_bytes(leaf))
			set_bytes(cell, p, n);
		else
			set_number(cell, leaf, read_bytes_le(p, (int)n));
		return 0;
	}
	len = read_bytes_le(p, 4);
	if (len > (size_t)(end - *next))
		return vfm_fail(err, VFM_EINPUT, "a text of %zu bytes exceeds its page", len);
	set_bytes(cell, *next, len);
	*next += len;
	return 0;
}

int parquet_dictionary_init(struct parquet_dictionary *d, const struct parquet_leaf *leaf, const uint8_t *data,
	size_t bytes, int64_t n, struct vfm_err *err)
{
	const uint8_t *p = data, *end = data + bytes;
	size_t least = leaf->type == PT_BYTE_ARRAY ? 4 : value_width(leaf);
	struct vfm_cell cell;

	*d = (struct parquet_dictionary){.data = data};
	if (!least || n < 0 || (uint64_t)n > bytes / least)
		return vfm_fail(err, VFM_EINPUT, "a damaged dictionary");
	d->n = (uint32_t)n;
	if (leaf->type != PT_BYTE_ARRAY)
		return 0;
	d->starts = vfm_big_alloc(((size_t)n + 1) * sizeof(d->starts[0]), "dictionary", err);
	if (!d->starts)
		return VFM_EENV;
	d->starts[0] = 0;
	for (uint32_t i = 0; i < d->n; i++) {
		TRY(read_plain(&cell, leaf, p, end, &p, err));
		d->starts[i + 1] = (uint32_t)(p - data);
	}
	return 0;
}

void parquet_dictionary_release(struct parquet_dictionary *d)
{
	vfm_big_free(d->starts, ((size_t)d->n + 1) * sizeof(d->starts[0]));
	*d = (struct parquet_dictionary){0};
}

static int look_up_value(struct parquet_values *v, struct vfm_cell *cell, struct vfm_err *err)
{
	const struct parquet_dictionary *d = v->dictionary;
	const uint8_t *next;
	size_t n = value_width(v->leaf);
	uint32_t i;

	if (!parquet_hybrid_next(&v->hybrid, &i))
		return fail_short(err);
	if (i >= d->n)
		return vfm_fail(err, VFM_EINPUT, "a page refers to value %u of a dictionary of %u", i + 1, d->n);
	if (v->leaf->type == PT_BYTE_ARRAY)
		return read_plain(cell, v->leaf, d->data + d->starts[i], d->data + d->starts[i + 1], &next, err);
	return read_plain(cell, v->leaf, d->data + i * n, d->data + (i + 1) * n, &next, err);
}

/* ---- values of a page ---- */

static bool encoding_fits(const struct parquet_values *v, int64_t encoding)
{
	enum parquet_type type = v->leaf->type;

	switch (encoding) {
	case PE_PLAIN:
		return true;
	case PE_PLAIN_DICTIONARY:
	case PE_RLE_DICTIONARY:
		return type != PT_BOOLEAN;
	case PE_RLE:
		return type == PT_BOOLEAN;
	case PE_DELTA_BINARY_PACKED:
		return type == PT_INT32 || type == PT_INT64;
	case PE_DELTA_LENGTH_BYTE_ARRAY:
	case PE_DELTA_BYTE_ARRAY:
		return type == PT_BYTE_ARRAY || (type == PT_FIXED && encoding == PE_DELTA_BYTE_ARRAY);
	case PE_BYTE_STREAM_SPLIT:
		return value_width(v->leaf) != 0 && type != PT_INT96;
	default:
		return false;
	}
}

/* Lengths, then the bytes of all texts. */
static int begin_texts(struct parquet_values *v, const uint8_t *p, struct vfm_err *err)
{
	TRY(begin_delta(&v->delta, p, v->end, err));
	v->p = end_of_delta(v->delta);
	return v->p ? 0 : vfm_fail(err, VFM_EINPUT, "damaged lengths of texts");
}

static int begin_indices(struct parquet_values *v, struct vfm_err *err)
{
	if (!v->dictionary)
		return vfm_fail(err, VFM_EINPUT, "a page needs a dictionary, but the column has none");
	/* Without values not even the width need be there. */
	if (v->p<v->end && * v->p> 32)
		return vfm_fail(err, VFM_EINPUT, "indices of %u bits", *v->p);
	if (v->p == v->end)
		parquet_hybrid_init(&v->hybrid, v->p, 0, 32);
	else
		parquet_hybrid_init(&v->hybrid, v->p + 1, (size_t)(v->end - v->p - 1), *v->p);
	return 0;
}

int parquet_values_begin(struct parquet_values *v, int64_t encoding, const uint8_t *data, size_t n, struct vfm_err *err)
{
	const uint8_t *p;

	if (!encoding_fits(v, encoding))
		return vfm_fail(err, VFM_EINPUT, "has the encoding %s (%lld), which is not read for this type",
			parquet_encoding_name(encoding), (long long)encoding);
	v->encoding = (int)encoding;
	v->p = data;
	v->end = data + n;
	v->bit = 0;
	v->text_len = 0;
	switch (encoding) {
	case PE_PLAIN_DICTIONARY:
	case PE_RLE_DICTIONARY:
		return begin_indices(v, err);
	case PE_RLE: /* behind its length */
		if (n < 4 || read_bytes_le(data, 4) > n - 4)
			return n ? fail_short(err) : 0;
		parquet_hybrid_init(&v->hybrid, data + 4, read_bytes_le(data, 4), 1);
		return 0;
	case PE_DELTA_BINARY_PACKED:
		return begin_delta(&v->delta, data, v->end, err);
	case PE_DELTA_LENGTH_BYTE_ARRAY:
		return begin_texts(v, data, err);
	case PE_DELTA_BYTE_ARRAY:
		TRY(begin_delta(&v->prefixes, data, v->end, err));
		p = end_of_delta(v->prefixes);
		return p ? begin_texts(v, p, err) : vfm_fail(err, VFM_EINPUT, "damaged lengths of prefixes");
	case PE_BYTE_STREAM_SPLIT:
		v->stride = n / value_width(v->leaf);
		v->at = 0;
		return 0;
	default:
		return 0;
	}
}

static int next_bool(struct parquet_values *v, struct vfm_cell *cell, struct vfm_err *err)
{
	uint32_t bit;

	cell->type = VFM_CELL_BOOL;
	if (v->encoding == PE_RLE) {
		if (v->p == v->end || !parquet_hybrid_next(&v->hybrid, &bit))
			return fail_short(err);
		cell->i = bit;
		return 0;
	}
	if (v->bit / 8 >= (uint64_t)(v->end - v->p))
		return fail_short(err);
	cell->i = (int64_t)read_bits(v->p, v->bit++, 1);
	return 0;
}

/* A value whose byte k is byte `at` of the k-th part of the page. */
static int next_split(struct parquet_values *v, struct vfm_cell *cell, struct vfm_err *err)
{
	size_t n = value_width(v->leaf);

	if (v->at >= v->stride)
		return fail_short(err);
	vfm_grow(&v->text, &v->text_cap, n, 1);
	for (size_t k = 0; k < n; k++)
		v->text[k] = (char)v->p[k * v->stride + v->at];
	v->at++;
	if (is_bytes(v->leaf))
		set_bytes(cell, v->text, n);
	else
		set_number(cell, v->leaf, read_bytes_le((const uint8_t *)v->text, (int)n));
	return 0;
}

static int next_text(struct parquet_values *v, struct vfm_cell *cell, struct vfm_err *err)
{
	int64_t len, prefix = 0;

	if (!next_delta(&v->delta, &len))
		return fail_short(err);
	if (len < 0 || len > v->end - v->p)
		return vfm_fail(err, VFM_EINPUT, "a text of %lld bytes exceeds its page", (long long)len);
	set_bytes(cell, v->p, (size_t)len);
	v->p += len;
	if (v->encoding == PE_DELTA_LENGTH_BYTE_ARRAY)
		return 0;
	if (!next_delta(&v->prefixes, &prefix))
		return fail_short(err);
	if (prefix < 0 || (uint64_t)prefix > v->text_len || prefix + len > MAX_TEXT)
		return vfm_fail(err, VFM_EINPUT, "a prefix of %lld bytes", (long long)prefix);
	v->text_len = (size_t)(prefix + len);
	vfm_grow(&v->text, &v->text_cap, v->text_len + 1, 1);
	memcpy(v->text + prefix, cell->text.s, (size_t)len);
	set_bytes(cell, v->text, v->text_len);
	return v->leaf->type != PT_FIXED || v->text_len == value_width(v->leaf)
		? 0
		: vfm_fail(err, VFM_EINPUT, "a value of %zu bytes, not %d", v->text_len, v->leaf->width);
}

int parquet_values_next(struct parquet_values *v, struct vfm_cell *cell, struct vfm_err *err)
{
	int64_t i;

	switch (v->encoding) {
	case PE_PLAIN_DICTIONARY:
	case PE_RLE_DICTIONARY:
		return look_up_value(v, cell, err);
	case PE_DELTA_BINARY_PACKED:
		if (!next_delta(&v->delta, &i))
			return fail_short(err);
		set_number(cell, v->leaf, (uint64_t)i);
		return 0;
	case PE_DELTA_LENGTH_BYTE_ARRAY:
	case PE_DELTA_BYTE_ARRAY:
		return next_text(v, cell, err);
	case PE_BYTE_STREAM_SPLIT:
		return next_split(v, cell, err);
	default:
		return v->leaf->type == PT_BOOLEAN ? next_bool(v, cell, err)
						   : read_plain(cell, v->leaf, v->p, v->end, &v->p, err);
	}
}

void parquet_values_release(struct parquet_values *v)
{
	free(v->text);
	*v = (struct parquet_values){0};
}
