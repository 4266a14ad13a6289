/* clip_hash.c - crops bars, takes the DCT of slots of a clip, quantizes and packs it. */
#include "media/match/clip_hash.h"

#include <math.h>
#include <openssl/evp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/le.h"
#include "base/mem.h"
#include "media/match/picture_dct.h"

#define SIZE     128 /* of the frames that are added up */
#define N        VFM_PICTURE_SIDE
#define U        8 /* coefficients u, v < U; all with u^2 + v^2 up to that of the last one are among them */
#define COEFS    VFM_CLIP_HASH_COEFS
#define SLOTS    VFM_CLIP_HASH_SLOTS
#define QUARTERS (2 * SLOTS)
#define VERSION  1         /* of a hash of slots alone, and … */
#define DETAILED 2         /* … of one with the detail of an image, … */
#define CHANGING 3         /* … or of a clip, with its changes */
#define FLAT     (1.5 * N) /* root of the sum of squares of the coefficients: 1.5 levels of luma */
#define FLAT_ROW (-128)

/* bars, in luma 0..255 */
#define BAR_MEAN 24
#define BAR_MAX  56
#define BAR_MOST (SIZE / 3)
#define BAR_EVEN 10 /* the brightest pixel of a line is less above its mean */
#define BAR_FLAT 5  /* lines of a bar differ by less */
#define BAR_STEP 6  /* the mean rises by so much after a bar, … */
#define BAR_RISE 32 /* … or the brightest pixel by so much */

/* ---- the coefficients ---- */

/* u (vertical) and v (horizontal) of each, by u^2 + v^2, then u */
static const uint8_t uv[COEFS][2] = {{0, 1}, {1, 0}, {1, 1}, {0, 2}, {2, 0}, {1, 2}, {2, 1}, {2, 2}, {0, 3}, {3, 0},
	{1, 3}, {3, 1}, {2, 3}, {3, 2}, {0, 4}, {4, 0}, {1, 4}, {4, 1}, {3, 3}, {2, 4}, {4, 2}, {0, 5}, {3, 4}, {4, 3},
	{5, 0}, {1, 5}, {5, 1}, {2, 5}, {5, 2}, {4, 4}, {3, 5}, {5, 3}, {0, 6}, {6, 0}, {1, 6}, {6, 1}, {2, 6}, {6, 2},
	{4, 5}, {5, 4}, {3, 6}, {6, 3}, {0, 7}, {7, 0}, {1, 7}, {5, 5}, {7, 1}, {4, 6}};

void vfm_clip_hash_place(int i, int *u, int *v)
{
	*u = uv[i][0];
	*v = uv[i][1];
}

/* Returns the number of lines at one end that form a bar: black in all frames, of one brightness, with a sharp edge.
 * An edge that fades to black is not a bar, because its end would depend on light and coding.  Returns 0 if so much is
 * black that the picture itself is dark. */
static int count_black(const float *mean, const float *max, int n, int step)
{
	const int from = step > 0 ? 0 : n - 1;
	int k = 0, last, next;

	while (k < n && mean[from + step * k] < BAR_MEAN && max[from + step * k] < BAR_MAX &&
		max[from + step * k] - mean[from + step * k] < BAR_EVEN &&
		fabsf(mean[from + step * k] - mean[from]) < BAR_FLAT)
		k++;
	if (k == 0 || k > BAR_MOST * n / SIZE || k + 1 >= n)
		return 0;
	last = from + step * (k - 1);
	next = from + step * (k + 1); /* the line between them may be of both */
	return mean[next] - mean[last] >= BAR_STEP || max[next] - max[last] >= BAR_RISE ? k : 0;
}

/* Sets box to the part that bars leave: rows [0] to [1] - 1, columns [2] to [3] - 1. */
static void find_bars(int box[4], const uint16_t *q, int n, int size)
{
	float row_mean[256] = {0}, row_max[256] = {0}, col_mean[256] = {0}, col_max[256] = {0};

	for (int k = 0; k < n; k++) {
		float rows[256] = {0}, cols[256] = {0};

		for (int y = 0; y < size; y++)
			for (int x = 0; x < size; x++) {
				float v = (float)q[((size_t)k * (size_t)size + (size_t)y) * (size_t)size + (size_t)x] /
					256;

				rows[y] += v / (float)size;
				cols[x] += v / (float)size;
				row_max[y] = fmaxf(row_max[y], v);
				col_max[x] = fmaxf(col_max[x], v);
			}
		for (int i = 0; i < size; i++) {
			row_mean[i] = fmaxf(row_mean[i], rows[i]);
			col_mean[i] = fmaxf(col_mean[i], cols[i]);
		}
	}
	box[0] = count_black(row_mean, row_max, size, 1);
	box[1] = size - count_black(row_mean, row_max, size, -1);
	box[2] = count_black(col_mean, col_max, size, 1);
	box[3] = size - count_black(col_mean, col_max, size, -1);
}

void vfm_clip_hash_transform(float x[COEFS], const float *picture, int size, const float *rows, const float *cols)
{
	float c[U][U];

	vfm_picture_transform(c[0], U, picture, size, rows, cols);
	for (int i = 0; i < COEFS; i++)
		x[i] = c[uv[i][0]][uv[i][1]];
}

/* ---- quantization ---- */

static bool is_flat_slot(const float *x)
{
	double sum = 0;

	for (int i = 0; i < COEFS; i++)
		sum += (double)x[i] * (double)x[i];
	return sqrt(sum) < FLAT;
}

void vfm_clip_hash_quantize(struct vfm_clip_hash *h, float x[][COEFS], int slots)
{
	double mean[COEFS] = {0};
	float most = 0;
	int n = 0;

	memset(h, 0, sizeof(*h));
	h->slots = slots;
	for (int k = 0; k < slots; k++)
		if (!is_flat_slot(x[k])) {
			for (int i = 0; i < COEFS; i++)
				mean[i] += (double)x[k][i];
			n++;
		}
	for (int i = 0; i < COEFS; i++)
		h->mean[i] = (int16_t)lrint(fmin(32767, fmax(-32767, 4 * mean[i] / (n ? n : 1))));
	for (int k = 0; k < slots; k++)
		for (int i = 0; i < COEFS && !is_flat_slot(x[k]); i++)
			most = fmaxf(most, fabsf(x[k][i] - (float)h->mean[i] / 4));
	h->scale = fmaxf(most / 127, 1.0F / 64);
	for (int k = 0; k < slots; k++)
		for (int i = 0; i < COEFS; i++)
			h->diff[k][i] = is_flat_slot(x[k])
				? (int8_t)(i ? 0 : FLAT_ROW)
				: (int8_t)lrintf((x[k][i] - (float)h->mean[i] / 4) / h->scale);
}

/* The mean of quarters from to to - 1. */
static void mean_picture(float *picture, const uint16_t *quarters, int from, int to, size_t pixels)
{
	memset(picture, 0, pixels * sizeof(*picture));
	for (int q = from; q < to; q++)
		for (size_t i = 0; i < pixels; i++)
			picture[i] += (float)quarters[(size_t)q * pixels + i];
	for (size_t i = 0; i < pixels; i++)
		picture[i] /= 256 * (float)(to - from);
}

void vfm_clip_hash_of(struct vfm_clip_hash *h, const uint16_t *quarters, int n, int size, bool image)
{
	const size_t pixels = (size_t)size * (size_t)size;
	float *rows = vfm_calloc((size_t)U * (size_t)size, sizeof(*rows));
	float *cols = vfm_calloc((size_t)U * (size_t)size, sizeof(*cols));
	float *picture = vfm_calloc(pixels, sizeof(*picture)), (*x)[COEFS] = vfm_calloc(SLOTS, sizeof(*x));
	int slots = image ? 1 : (n + 1) / 2, box[4];

	find_bars(box, quarters, n, size);
	slots = slots > SLOTS ? SLOTS : slots;
	vfm_picture_weights(rows, U, size, box[0], box[1]);
	vfm_picture_weights(cols, U, size, box[2], box[3]);
	for (int k = 0; k < slots; k++) {
		int from = image || k == 0 ? 0 : 2 * k - 1, to = image || 2 * k + 3 > n ? n : 2 * k + 3;

		mean_picture(picture, quarters, from, to, pixels);
		vfm_clip_hash_transform(x[k], picture, size, rows, cols);
	}
	vfm_clip_hash_quantize(h, x, slots);
	h->has_detail = image && vfm_clip_hash_informative(h);
	if (h->has_detail)
		vfm_image_detail_of(&h->detail, picture, size, box);
	if (!image && vfm_clip_changes_of(&h->changes, quarters, n, size, box) && vfm_clip_hash_informative(h)) {
		mean_picture(picture, quarters, 0, n, pixels);
		h->has_detail = true;
		vfm_image_detail_of(&h->detail, picture, size, box);
	}
	free(rows);
	free(cols);
	free(picture);
	free(x);
}

int vfm_clip_hash_informative(const struct vfm_clip_hash *h)
{
	int n = 0;

	for (int k = 0; k < h->slots; k++)
		n += h->diff[k][0] != FLAT_ROW;
	return n;
}

/* ---- frames ---- */

struct vfm_clip_hasher {
	uint16_t *quarters; /* [QUARTERS, SIZE, SIZE] */
	uint32_t *sum;      /* [SIZE, SIZE] of the quarter at hand */
	uint8_t *luma;
	int at, n_frames; /* the quarter, and its frames so far */
	int64_t seen;
	double first_s, last_s; /* of the clip; of the last frame that was added, since then */
	bool full;              /* the hash reaches no further */
};

struct vfm_clip_hasher *vfm_clip_hasher_new(void)
{
	const size_t pixels = (size_t)SIZE * SIZE;
	struct vfm_clip_hasher *s = vfm_calloc(1, sizeof(*s));

	s->quarters = vfm_calloc((size_t)QUARTERS * pixels, sizeof(*s->quarters));
	s->sum = vfm_calloc(pixels, sizeof(*s->sum));
	s->luma = vfm_calloc(pixels, 1);
	return s;
}

void vfm_clip_hasher_free(struct vfm_clip_hasher *s)
{
	if (!s)
		return;
	free(s->quarters);
	free(s->sum);
	free(s->luma);
	free(s);
}

/* Ends the quarter at hand; those up to `next` without a frame show the last frame. */
static void end_quarter(struct vfm_clip_hasher *s, int next)
{
	const size_t pixels = (size_t)SIZE * SIZE;

	for (size_t i = 0; i < pixels && s->n_frames; i++)
		s->quarters[(size_t)s->at * pixels + i] = (uint16_t)(256 * s->sum[i] / (uint32_t)s->n_frames);
	for (int q = s->at + 1; q < next; q++)
		for (size_t i = 0; i < pixels; i++)
			s->quarters[(size_t)q * pixels + i] = (uint16_t)(256 * s->luma[i]);
	memset(s->sum, 0, pixels * sizeof(*s->sum));
	s->n_frames = 0;
	s->at = next;
}

#define FRAME_S 0.08 /* frames that follow closer are left out */

int vfm_clip_hasher_push(struct vfm_clip_hasher *s, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err)
{
	double t;
	int q;

	if (s->full)
		return 0;
	if (s->seen++ == 0)
		s->first_s = f->time_s;
	t = f->time_s - s->first_s;
	q = (int)fmin(floor(4 * t + 1e-6), QUARTERS);
	s->full = q >= QUARTERS;
	if (s->full || (s->seen > 1 && q <= s->at && t < s->last_s + FRAME_S))
		return 0;
	if (q > s->at)
		end_quarter(s, q);
	TRY(vfm_video_luma(v, SIZE, SIZE, VFM_FIT_STRETCH, s->luma, err));
	for (size_t i = 0; i < (size_t)SIZE * SIZE; i++)
		s->sum[i] += s->luma[i];
	s->n_frames++;
	s->last_s = t;
	return 0;
}

int vfm_clip_hasher_finish(struct vfm_clip_hasher *s, bool image, struct vfm_clip_hash *h, struct vfm_err *err)
{
	if (!s->seen)
		return vfm_fail(err, VFM_EINPUT, "no frame can be decoded");
	end_quarter(s, s->at + (s->n_frames > 0));
	vfm_clip_hash_of(h, s->quarters, s->at, SIZE, image);
	return 0;
}

int vfm_clip_hash_file(
	struct vfm_clip_hash *h, const char *path, const struct vfm_clip_hash_opts *o, struct vfm_err *err)
{
	int64_t want = o->end < 0 ? INT64_MAX : o->end - o->start;
	struct vfm_clip_hasher *s = vfm_clip_hasher_new();
	struct vfm_video *v = NULL;
	struct vfm_frame f;
	int rc = 1;

	TRY_OUT(vfm_video_open(&v, path, &o->video, err));
	if (o->start > 0)
		TRY_OUT(vfm_video_seek(v, o->start, o->start_pts, err));
	for (int64_t i = 0; i < want && !s->full && (rc = vfm_video_next(v, &f, err)) == 1; i++)
		TRY_OUT(vfm_clip_hasher_push(s, v, &f, err));
	TRY_OUT(rc);
	TRY_OUT(s->full ? 0 : vfm_video_check_end(v, o->end, err));
	rc = vfm_clip_hasher_finish(s, vfm_video_info(v)->image, h, err);
out:
	vfm_video_close(v);
	vfm_clip_hasher_free(s);
	return rc;
}

/* ---- bytes ---- */

static void pack_detail(uint8_t *out, const struct vfm_image_detail *d)
{
	memcpy(out, d->box, sizeof(d->box));
	out[4] = d->mean;
	memcpy(out + 5, d->coef, sizeof(d->coef));
}

static int unpack_detail(struct vfm_image_detail *d, const uint8_t *in, struct vfm_err *err)
{
	memcpy(d->box, in, sizeof(d->box));
	d->mean = in[4];
	memcpy(d->coef, in + 5, sizeof(d->coef));
	if (!vfm_image_detail_is_valid(d))
		return vfm_fail(err, VFM_EINPUT, "the bars of the hash are out of range");
	return 0;
}

size_t vfm_clip_hash_pack(const struct vfm_clip_hash *h, uint8_t *out)
{
	uint32_t scale;
	size_t len;

	memcpy(&scale, &h->scale, 4);
	vfm_write_le(out, h->changes.n ? CHANGING : h->has_detail ? DETAILED : VERSION, 2);
	vfm_write_le(out + 2, (uint64_t)h->slots, 2);
	vfm_write_le(out + 4, scale, 4);
	for (int i = 0; i < COEFS; i++)
		vfm_write_le(out + 8 + 2 * i, (uint64_t)h->mean[i], 2);
	memcpy(out + VFM_CLIP_HASH_HEAD, h->diff, (size_t)h->slots * COEFS);
	len = VFM_CLIP_HASH_HEAD + (size_t)h->slots * COEFS;
	if (h->changes.n)
		len += vfm_clip_changes_pack(&h->changes, out + len);
	if (h->has_detail)
		pack_detail(out + len, &h->detail);
	return len + (h->has_detail ? VFM_IMAGE_BYTES : 0);
}

/* Reads what follows the slots, `len` bytes. */
static int unpack_extra(struct vfm_clip_hash *h, int version, const uint8_t *in, size_t len, struct vfm_err *err)
{
	size_t n = version == CHANGING ? vfm_clip_changes_unpack(&h->changes, in, len) : 0;

	h->has_detail = len == n + VFM_IMAGE_BYTES;
	if (!(len == n || h->has_detail) || (version == VERSION && h->has_detail) ||
		(version == DETAILED && !h->has_detail) ||
		(version == CHANGING && (!n || h->changes.n < 2 * h->slots - 4 || h->changes.n > 2 * h->slots - 3)))
		return vfm_fail(err, VFM_EINPUT, "a hash of version %d and %d slots has %zu bytes", version,
			(int)h->slots, VFM_CLIP_HASH_HEAD + (size_t)h->slots * COEFS + len);
	return h->has_detail ? unpack_detail(&h->detail, in + n, err) : 0;
}

int vfm_clip_hash_unpack(struct vfm_clip_hash *h, const uint8_t *in, size_t len, struct vfm_err *err)
{
	uint32_t scale;
	size_t slots_end;
	int version;

	if (len < VFM_CLIP_HASH_HEAD)
		return vfm_fail(err, VFM_EINPUT, "the hash is truncated");
	version = vfm_read_le(in, 2);
	if (version < VERSION || version > CHANGING)
		return vfm_fail(err, VFM_EINPUT, "a hash of version %d, expected %d to %d", version, VERSION, CHANGING);
	memset(h, 0, offsetof(struct vfm_clip_hash, changes));
	h->changes.n = 0;
	h->slots = vfm_read_le(in + 2, 2);
	slots_end = VFM_CLIP_HASH_HEAD + (size_t)h->slots * COEFS;
	if (h->slots < 1 || h->slots > (version == DETAILED ? 1 : SLOTS) || len < slots_end)
		return vfm_fail(err, VFM_EINPUT, "a hash of version %d and %d slots has %zu bytes", version,
			(int)h->slots, len);
	scale = vfm_read_le32(in + 4);
	memcpy(&h->scale, &scale, 4);
	if (!(h->scale > 0 && h->scale < 1e4F))
		return vfm_fail(err, VFM_EINPUT, "the scale of the hash is out of range");
	for (int i = 0; i < COEFS; i++)
		h->mean[i] = (int16_t)vfm_read_le(in + 8 + 2 * i, 2);
	memcpy(h->diff, in + VFM_CLIP_HASH_HEAD, (size_t)h->slots * COEFS);
	return unpack_extra(h, version, in + slots_end, len - slots_end, err);
}

char *vfm_clip_hash_text(const struct vfm_clip_hash *h)
{
	uint8_t bytes[VFM_CLIP_HASH_BYTES];
	size_t n = vfm_clip_hash_pack(h, bytes);
	char *text = vfm_malloc((n + 2) / 3 * 4 + 1);

	EVP_EncodeBlock((unsigned char *)text, bytes, (int)n);
	return text;
}

int vfm_clip_hash_parse(struct vfm_clip_hash *h, const char *text, struct vfm_err *err)
{
	return vfm_clip_hash_parse_bytes(h, text, strlen(text), err);
}

int vfm_clip_hash_parse_bytes(struct vfm_clip_hash *h, const char *text, size_t n, struct vfm_err *err)
{
	uint8_t bytes[VFM_CLIP_HASH_BYTES + 3];
	size_t pad = 0;
	int len;

	while (pad < 2 && n > pad && text[n - 1 - pad] == '=')
		pad++;
	if (n % 4 || n / 4 * 3 > sizeof(bytes))
		return vfm_fail(err, VFM_EINPUT, "the hash is truncated or too long");
	len = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)n);
	if (len < (int)pad)
		return vfm_fail(err, VFM_EINPUT, "the hash is not base64");
	return vfm_clip_hash_unpack(h, bytes, (size_t)len - pad, err);
}
