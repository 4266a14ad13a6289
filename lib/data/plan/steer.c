/* steer.c - ends a window after enough change of the mix, or at a stop. */
#include "data/plan/steer.h"

#include <math.h>

enum {
	FEW_PARTS = 16, /* of a short window, whose mix may change more */
	WINDOWS = 64,   /* of a plan, at least, if they are not short */
	MEASURED = 256  /* parts whose samples tell how many the next ones have */
};
#define STEADY 0.01 /* largest change of a share in a window that is not short */

int vfm_steering_init(struct vfm_steering *s, struct vfm_err *err)
{
	double tokens, room = s->total * s->tokens;

	s->samples = 1;
	s->end = s->total;
	if (vfm_blend_left(s->blend, &tokens) > 0) /* what completes the last steps is of the other sets */
		s->end -= floor(fmin(fmax(FEW_PARTS, s->batch), s->total / 8));
	if (tokens > room)
		return vfm_fail(err, VFM_EUSAGE, "%.0f steps have room for %.0f tokens; the sets with passes have %.0f",
			s->total / s->batch, room, tokens);
	return 0;
}

/* Returns the next stop: a step that the weights name, or an end. */
static double next_stop(const struct vfm_steering *s)
{
	double stop = fmin(vfm_blend_next_point(s->blend, s->passed / s->batch) * s->batch, s->total);

	return s->end > s->passed ? fmin(stop, s->end) : stop;
}

/* Returns the parts of a window that begins at `at`: if few remain until the stop, all of them. */
static double size_window(const struct vfm_steering *s, double at, double stop)
{
	double room = stop - at, most = fmax(FEW_PARTS, s->batch), steady;

	if (room <= FEW_PARTS)
		return fmax(room, 0);
	steady = vfm_blend_steady(s->blend, at / s->batch, stop / s->batch, STEADY) * s->batch - at;
	most = fmin(fmax(most, fmin(steady, s->total / WINDOWS)), s->window / s->samples);
	/* after a stop the mix is a new one, and so may be the tokens of a part */
	return fmin(most, fmax(at - s->passed < 1 ? room / 64 : room * 7 / 8, FEW_PARTS));
}

struct vfm_steered_window vfm_steering_begin(struct vfm_steering *s, double made, double waiting)
{
	double at = made + waiting / s->tokens, stop = next_stop(s), parts = size_window(s, at, stop);
	bool at_stop = stop - at <= FEW_PARTS, at_end = at_stop && stop >= s->total;
	struct vfm_steered_window w = {.parts = parts,
		.stop = stop,
		.budget = (at_end                       ? 1.02 * parts + 2 /* the plan takes some of them */
					  : parts > 0.5 ? parts
							: 0) *
			(s->by_samples ? 1 : s->tokens),
		.flush = at_stop && !at_end,
		.takes_passes = at_stop && stop == s->end};

	vfm_blend_steer(s->blend, (at + parts / 2) / s->batch, (s->end - at) * s->tokens);
	return w;
}

void vfm_steering_measure(struct vfm_steering *s, double made, double tokens, double samples)
{
	if (!(made > 0))
		return;
	s->tokens = (s->tokens * s->measured + tokens) / (s->measured + made);
	s->samples = (s->samples * s->measured + samples) / (s->measured + made);
	s->measured = fmin(s->measured + made, MEASURED);
}

bool vfm_steering_passes(struct vfm_steering *s, const struct vfm_steered_window *w, double made, double waiting)
{
	if (!w->flush || made + waiting / s->tokens < w->stop - 0.5)
		return false;
	s->passed = w->stop;
	return true;
}
