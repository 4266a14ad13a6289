/* clock.c - wraps clock_gettime: seconds as doubles, and limits of time. */
#include "base/clock.h"

static double read_clock(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double vfm_now(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

double vfm_wall_time(void)
{
	return read_clock(CLOCK_REALTIME);
}

struct timespec vfm_time_after(clockid_t clock, double seconds)
{
	double at = read_clock(clock) + seconds;

	return (struct timespec){.tv_sec = (time_t)at, .tv_nsec = (long)((at - (double)(time_t)at) * 1e9)};
}

struct vfm_limit vfm_limit_start(double seconds)
{
	return (struct vfm_limit){.until = vfm_now() + seconds, .seconds = seconds};
}

bool vfm_limit_is_over(const struct vfm_limit *l)
{
	return l->until > 0 && vfm_now() > l->until;
}

int vfm_limit_check(const struct vfm_limit *l, const char *path, struct vfm_err *err)
{
	if (!vfm_limit_is_over(l))
		return 0;
	return vfm_fail(err, VFM_EINPUT, "'%s': gave up after %g s", path, l->seconds);
}
