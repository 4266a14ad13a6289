/* times.c - fits a regular grid to the timestamps, and counts bad and varying ones. */
#include <libavutil/rational.h>
#include <math.h>

#include "media/av/times.h"

#define TOLERANCE   0.25 /* of a period */
#define EPSILON     1e-9
#define MAX_RATE    1000
#define MIN_PERIOD  1e-4 /* on average; with less, the unit of the timestamps is wrong (raw Dirac in FFmpeg 5.1) */
#define MAX_REPEATS 0.1  /* of the frames */

void vfm_times_add(struct vfm_times *t, double time_s)
{
	double gap = time_s - t->last_s, from_first, slack = t->tick_s + EPSILON, n = (double)t->n, least, most;

	if (t->n++ == 0) {
		t->first_s = t->last_s = time_s;
		return;
	}
	if (!(gap >= 0) || gap > VFM_TIMES_MAX_GAP_S)
		t->jumps = true;
	t->repeats += gap == 0;
	t->last_s = time_s;
	/* |from_first - n period| <= TOLERANCE period + slack, solved for the period */
	from_first = time_s - t->first_s;
	least = (from_first - slack) / (n + TOLERANCE);
	most = (from_first + slack) / (n - TOLERANCE);
	t->least = t->n == 2 ? least : fmax(t->least, least);
	t->most = t->n == 2 ? most : fmin(t->most, most);
}

bool vfm_times_bad(const struct vfm_times *t)
{
	return t->jumps || (double)t->repeats > MAX_REPEATS * (double)t->n ||
		(t->n > 1 && t->last_s - t->first_s < MIN_PERIOD * (double)(t->n - 1));
}

bool vfm_times_vary(const struct vfm_times *t)
{
	return t->n > 1 && !vfm_times_bad(t) && t->least > t->most;
}

static bool fits_rate(const struct vfm_times *t, double rate)
{
	return rate > 0 && 1 / rate >= t->least && 1 / rate <= t->most;
}

/* The common rate next to the mean that the timestamps allow, or the mean. */
static struct vfm_frame_rate measured_rate(const struct vfm_times *t)
{
	double mean = (double)(t->n - 1) / (t->last_s - t->first_s), nearest = INFINITY;
	AVRational found = {0, 1};

	for (int ntsc = 0; ntsc < 2 && mean < MAX_RATE && !vfm_times_vary(t); ntsc++) {
		AVRational r =
			ntsc ? (AVRational){(int)lrint(mean * 1.001) * 1000, 1001} : (AVRational){(int)lrint(mean), 1};

		if (!fits_rate(t, av_q2d(r)) || fabs(av_q2d(r) - mean) >= nearest)
			continue;
		nearest = fabs(av_q2d(r) - mean);
		found = r;
	}
	if (!found.num)
		found = av_d2q(mean, 100000);
	return (struct vfm_frame_rate){found.num, found.den};
}

struct vfm_frame_rate vfm_times_rate(const struct vfm_times *t, struct vfm_frame_rate header)
{
	if (vfm_times_bad(t) || t->n < 2 || (header.num > 0 && fits_rate(t, (double)header.num / header.den)))
		return header;
	return measured_rate(t);
}

double vfm_times_duration(const struct vfm_times *t, struct vfm_frame_rate rate, double claimed_s)
{
	double period = rate.num > 0 ? (double)rate.den / rate.num : 0, last = t->last_s - t->first_s;

	if (vfm_times_bad(t))
		return (double)t->n * period;
	if (vfm_times_vary(t) && claimed_s > last && claimed_s - last <= VFM_TIMES_MAX_GAP_S)
		return claimed_s;
	return last + period;
}
