#include "data/record/thumbnail.h"

#include "base/mem.h"
#include "data/record/clip_reader.h"

int vfm_thumbnail(
	const json_t *rec, int width, int height, double timeout_s, uint8_t **rgb, int *w, int *h, struct vfm_err *err)
{
	const struct vfm_clip_opts o = {.width = width,
		.height = height,
		.fit = VFM_CLIP_CONTAIN,
		.even = 1,
		.timeout_s = timeout_s,
		.threads = 1};
	struct vfm_clip_reader clip = {0};
	int rc;

	*rgb = NULL;
	rc = vfm_clip_open(&clip, rec, &o, err);
	if (rc >= 0) {
		*w = clip.width;
		*h = clip.height;
		*rgb = vfm_malloc((size_t)*w * (size_t)*h * 3);
		rc = vfm_clip_next(&clip, *rgb, err);
		if (rc == 0)
			rc = vfm_fail(err, VFM_EINPUT, "no frame can be decoded");
	}
	vfm_clip_close(&clip);
	return rc < 0 ? rc : 0;
}
