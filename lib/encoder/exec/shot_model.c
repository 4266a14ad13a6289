/* shot_model.c - shows a child windows of frames and makes cuts of its probabilities.  The window moves by its frames
 * without the margins; the first and the last frame of the video are repeated as margins. */
#include "encoder/exec/shot_model.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/exec/payload.h"

struct vfm_shot_model {
	struct vfm_exec_slot *slot;
	const struct vfm_hello *hello;
	const char *id;
	double threshold;
	size_t picture, bytes; /* of a frame, of the window */
	uint8_t *window;
	int64_t filled; /* frames in the window */
	float *answer;  /* [frames of a window] */
	float *p;       /* [n] of the video's frames so far */
	size_t p_cap;
	int64_t n, frames; /* frames: of the video so far */
	struct vfm_cut *cuts;
	size_t cuts_cap;
	int64_t n_cuts;
};

int vfm_shot_model_new(struct vfm_shot_model **out, struct vfm_exec_slot *slot, const struct vfm_hello *hello,
	const char *id, struct vfm_err *err)
{
	const struct vfm_exec_windows *w = &hello->shots;
	struct vfm_shot_model *m = vfm_calloc(1, sizeof(*m));

	m->slot = slot;
	m->hello = hello;
	m->id = id;
	m->picture = (size_t)(w->width * w->height * 3);
	m->bytes = m->picture * (size_t)w->frames;
	m->answer = vfm_calloc((size_t)w->frames, sizeof(float));
	m->window = vfm_big_alloc(m->bytes, "a window of frames", err);
	if (!m->window) {
		vfm_shot_model_free(m);
		return VFM_EENV;
	}
	*out = m;
	return 0;
}

void vfm_shot_model_free(struct vfm_shot_model *m)
{
	if (!m)
		return;
	if (m->window)
		vfm_big_free(m->window, m->bytes);
	free(m->answer);
	free(m->p);
	free(m->cuts);
	free(m);
}

/* Asks for the full window and moves it. */
static int ask_window(struct vfm_shot_model *m, struct vfm_err *err)
{
	const struct vfm_exec_windows *w = &m->hello->shots;
	int64_t step = w->frames - 2 * w->margin;

	TRY(vfm_exec_input(m->slot, 0, m->window, m->bytes, err));
	TRY(vfm_outside_shots(m->slot, m->hello, m->id, m->answer, err));
	vfm_grow(&m->p, &m->p_cap, (size_t)(m->n + step), sizeof(m->p[0]));
	memcpy(m->p + m->n, m->answer + w->margin, (size_t)step * sizeof(m->p[0]));
	m->n += step;
	m->filled = 2 * w->margin;
	memmove(m->window, m->window + m->picture * (size_t)step, m->picture * (size_t)m->filled);
	return 0;
}

static int append_frame(struct vfm_shot_model *m, const uint8_t *rgb, struct vfm_err *err)
{
	memmove(m->window + m->picture * (size_t)m->filled, rgb, m->picture);
	return ++m->filled < m->hello->shots.frames ? 0 : ask_window(m, err);
}

static int push_frame(void *ctx, const uint8_t *rgb, struct vfm_err *err)
{
	struct vfm_shot_model *m = ctx;

	for (int64_t i = 0; m->frames == 0 && i < m->hello->shots.margin; i++)
		TRY(append_frame(m, rgb, err));
	m->frames++;
	return append_frame(m, rgb, err);
}

static void add_run(struct vfm_shot_model *m, int64_t first, int64_t end)
{
	struct vfm_cut cut = {.from = first + 1, .frame = end};

	if (end >= m->frames) /* the last shot ends with the video */
		return;
	cut.kind = cut.frame > cut.from ? VFM_CUT_DISSOLVE : VFM_CUT_HARD;
	for (int64_t i = first; i < end; i++)
		if (m->p[i] > cut.confidence)
			cut.confidence = m->p[i];
	vfm_grow(&m->cuts, &m->cuts_cap, (size_t)m->n_cuts + 1, sizeof(m->cuts[0]));
	m->cuts[m->n_cuts++] = cut;
}

static int find_cuts(void *ctx, const struct vfm_cut **cuts, int64_t *n_cuts, struct vfm_err *err)
{
	struct vfm_shot_model *m = ctx;
	int64_t first = -1;

	while (m->n < m->frames) {
		const uint8_t *last = m->window + m->picture * (size_t)(m->filled - 1);

		TRY(append_frame(m, last, err));
	}
	for (int64_t i = 0; i <= m->frames; i++) {
		bool in = i < m->frames && m->p[i] >= m->threshold;

		if (in && first < 0)
			first = i;
		if (!in && first >= 0) {
			add_run(m, first, i);
			first = -1;
		}
	}
	*cuts = m->cuts;
	*n_cuts = m->n_cuts;
	return 0;
}

struct vfm_shot_detector vfm_shot_model_detector(struct vfm_shot_model *m, double threshold)
{
	m->threshold = threshold > 0 ? threshold : 0.5;
	return (struct vfm_shot_detector){.width = (int)m->hello->shots.width,
		.height = (int)m->hello->shots.height,
		.push = push_frame,
		.cuts = find_cuts,
		.ctx = m};
}
