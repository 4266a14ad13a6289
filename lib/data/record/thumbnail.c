#include "data/record/thumbnail.h"

#include "base/mem.h"
#include "base/par.h"
#include "data/record/clip_reader.h"

int vfm_thumbnails(struct vfm_thumbnails *t, const json_t *rec, int frames, int width, int height, double timeout_s,
	struct vfm_err *err)
{
	const struct vfm_clip_opts o = {.width = width,
		.height = height,
		.fit = VFM_CLIP_CONTAIN,
		.even = frames,
		.timeout_s = timeout_s,

		.threads = vfm_par_threads()};
	struct vfm_clip_reader clip = {0};
	int rc = vfm_clip_open(&clip, rec, &o, err);

	*t = (struct vfm_thumbnails){0};
	if (rc >= 0) {
		size_t size = (size_t)clip.width * (size_t)clip.height * 3;

		t->width = clip.width;
		t->height = clip.height;
		t->rgb = vfm_malloc((size_t)frames * size);
		while (t->n < frames && (rc = vfm_clip_next(&clip, t->rgb + (size_t)t->n * size, err)) == 1)
			t->n++;
		if (rc == 0 && t->n == 0)
			rc = vfm_fail(err, VFM_EINPUT, "no frame can be decoded");
	}
	vfm_clip_close(&clip);
	return rc < 0 && t->n == 0 ? rc : 0;
}
