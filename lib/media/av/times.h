/* times.h - derives rate and duration of a video from its timestamps, and whether the rate is constant.
 *
 * The rate is constant if each frame is near its place on a regular grid that begins at the first frame: within a
 * quarter of a period and one tick of the file's clock.  Clocks of milliseconds and soft telecine are constant; lost
 * frames, freezes and screen recordings are not.  The rate of a header is used only if the timestamps agree with it.
 * O(1) memory. */
#ifndef VFM_MEDIA_AV_TIMES_H
#define VFM_MEDIA_AV_TIMES_H

#include <stdbool.h>
#include <stdint.h>

#define VFM_TIMES_MAX_GAP_S 60 /* a longer gap between two frames is a fault of the file */

struct vfm_times {     /* `= {.tick_s = …}` before the first frame */
	double tick_s; /* unit of the timestamps */
	int64_t n;
	double first_s, last_s;
	double least, most; /* bounds of the period, after the second frame */
	int64_t repeats;    /* frames with the timestamp of the frame before */
	bool jumps;         /* a timestamp goes back, or jumps by more than VFM_TIMES_MAX_GAP_S */
};

struct vfm_frame_rate {
	int num, den; /* frames per second; 0/1: unknown */
};

void vfm_times_add(struct vfm_times *t, double time_s);
/* Returns whether the timestamps are unusable: they jump, more than a tenth of them repeat, or they imply more than
 * 10,000 frames per second. */
bool vfm_times_bad(const struct vfm_times *t);
bool vfm_times_vary(const struct vfm_times *t); /* false if the timestamps are bad */

/* Returns `header` if the timestamps agree with it, are bad, or are fewer than two.  Otherwise returns the measured
 * rate: a common one (k or k * 1000/1001 frames per second) within the bounds, or the mean. */
struct vfm_frame_rate vfm_times_rate(const struct vfm_times *t, struct vfm_frame_rate header);

/* Returns the seconds from the first frame to the end of the last.  A constant rate determines the duration of the last
 * frame.  Otherwise, the last frame lasts until `claimed_s`, the end in the file's header (< 0: unknown), if that is
 * plausible, or for a mean gap.  rate: from vfm_times_rate. */
double vfm_times_duration(const struct vfm_times *t, struct vfm_frame_rate rate, double claimed_s);

#endif
