/* sig.c - see sig.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "media/sig.h"

#define W           VFM_SIG_W
#define H           VFM_SIG_H
#define B           VFM_SIG_BLOCK
#define N_PIX       ((float)(W * H))
#define FLAT        2.0f /* mean absolute deviation of luma below which a block has no texture */
#define UNEXPLAINED 0.55f

void vfm_sig_of(struct vfm_sig *s, const uint8_t *rgb)
{
	float sum = 0, sum2 = 0;

	memset(s->hist, 0, sizeof(s->hist));
	for (int i = 0; i < W * H; i++) {
		const uint8_t *p = rgb + 3 * i;
		int y = (77 * p[0] + 150 * p[1] + 29 * p[2] + 128) >> 8;

		s->y[i] = (uint8_t)y;
		sum += (float)y;
		sum2 += (float)(y * y);
	}
	s->mean = sum / (W * H);
	s->std = sqrtf(fmaxf(0, sum2 / (W * H) - s->mean * s->mean));
	for (int j = 0; j < H / 2; j++)
		for (int i = 0; i < W / 2; i++) {
			const uint8_t *p = rgb + 3 * (2 * j * W + 2 * i), *q = p + 3 * W;
			int r = p[0] + p[3] + q[0] + q[3], g = p[1] + p[4] + q[1] + q[4], b = p[2] + p[5] + q[2] + q[5];
			int y = (77 * r + 150 * g + 29 * b) >> 10;
			int cb = 128 + ((-43 * r - 85 * g + 128 * b) >> 10),
			    cr = 128 + ((128 * r - 107 * g - 21 * b) >> 10);

			s->cb[j * W / 2 + i] = (uint8_t)(cb < 0 ? 0 : cb > 255 ? 255 : cb);
			s->cr[j * W / 2 + i] = (uint8_t)(cr < 0 ? 0 : cr > 255 ? 255 : cr);
			/* Chroma is mostly near the middle: smaller bins there. */
			cb = cb < 112 ? 0 : cb < 128 ? 1 : cb < 144 ? 2 : 3;
			cr = cr < 112 ? 0 : cr < 128 ? 1 : cr < 144 ? 2 : 3;
			s->hist[(y >> 5) * 16 + cb * 4 + cr]++;
		}
}

/* Returns the sum of absolute differences between the block at (x, y) in b and the one at (x + dx, y + dy) in a, each
 * minus its mean, because brightness may change. */
static int block_sad(const struct vfm_sig *a, const struct vfm_sig *b, int x, int y, int dx, int dy, int mean_b)
{
	int sum = 0, sad = 0, offset;

	for (int j = 0; j < B; j++)
		for (int i = 0; i < B; i++)
			sum += a->y[(y + dy + j) * W + x + dx + i];
	offset = mean_b - (sum + B * B / 2) / (B * B);
	for (int j = 0; j < B; j++)
		for (int i = 0; i < B; i++)
			sad += abs(b->y[(y + j) * W + x + i] - a->y[(y + dy + j) * W + x + dx + i] - offset);
	return sad;
}

static int best_match(const struct vfm_sig *a, const struct vfm_sig *b, int x, int y, int search, int mean_b)
{
	int best = block_sad(a, b, x, y, 0, 0, mean_b);

	for (int dy = -search; dy <= search; dy++)
		for (int dx = -search; dx <= search; dx++) {
			int sad;

			if (x + dx < 0 || y + dy < 0 || x + dx + B > W || y + dy + B > H)
				continue;
			sad = block_sad(a, b, x, y, dx, dy, mean_b);
			best = sad < best ? sad : best;
		}
	return best;
}

/* Mean absolute deviation of a block, and its mean. */
static float texture(const struct vfm_sig *s, int x, int y, int *mean)
{
	int sum = 0, dev = 0;

	for (int j = 0; j < B; j++)
		for (int i = 0; i < B; i++)
			sum += s->y[(y + j) * W + x + i];
	*mean = (sum + B * B / 2) / (B * B);
	for (int j = 0; j < B; j++)
		for (int i = 0; i < B; i++)
			dev += abs(s->y[(y + j) * W + x + i] - *mean);
	return (float)dev / (B * B);
}

void vfm_sig_compare(const struct vfm_sig *a, const struct vfm_sig *b, int search, struct vfm_sig_diff *d)
{
	int sum = 0, chroma = 0, overlap = 0, n = 0, lost = 0;
	float left = 0, there = 0;

	for (int i = 0; i < W * H; i++)
		sum += abs(a->y[i] - b->y[i]);
	for (int i = 0; i < W * H / 4; i++)
		chroma += abs(a->cb[i] - b->cb[i]) + abs(a->cr[i] - b->cr[i]);
	for (int i = 0; i < VFM_SIG_HIST; i++)
		overlap += a->hist[i] < b->hist[i] ? a->hist[i] : b->hist[i];
	d->pixel = (float)sum / N_PIX + (float)chroma / (N_PIX / 4.0f);
	d->hist = 1 - (float)overlap / (N_PIX / 4.0f);
	for (int y = 0; y + B <= H; y += B)
		for (int x = 0; x + B <= W; x += B) {
			int mean_a, mean_b;
			float ta = texture(a, x, y, &mean_a), tb = texture(b, x, y, &mean_b), t = fmaxf(ta, tb), r;

			if (t < FLAT)
				continue;
			r = (float)best_match(a, b, x, y, search, mean_b) / (B * B);
			n++;
			left += fminf(r, t);
			there += t;
			lost += r > UNEXPLAINED * t;
		}
	d->moved = there > 0 ? left / there : 0;
	d->blocks = n ? (float)lost / (float)n : 0;
}
