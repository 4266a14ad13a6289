/* pictures.c - decodes each record once, in parallel, and keeps its JPEG in base64. */
#include "curate/report/pictures.h"

#include <stdlib.h>

#include "base/par.h"
#include "curate/report/report.h"
#include "data/record/clip_reader.h"
#include "media/av/jpeg.h"
#include "media/draw/html.h"

enum { PICTURE_W = 240, PICTURE_H = 180 };

struct report_picture {
	const json_t *rec;
	struct vfm_buf jpeg;
	int width, height;
	int rc;
	struct vfm_err why;
};

void report_pictures_release(struct report_pictures *p)
{
	for (size_t i = 0; i < p->n; i++)
		vfm_buf_release(&p->list[i].jpeg);
	free(p->list);
}

void report_pictures_want(struct report_pictures *p, const json_t *rec)
{
	vfm_grow(&p->list, &p->cap, p->n + 1, sizeof(p->list[0]));
	p->list[p->n++] = (struct report_picture){.rec = rec};
}

static int compare_pictures(const void *a, const void *b)
{
	const struct report_picture *x = a, *y = b;

	return (x->rec > y->rec) - (x->rec < y->rec);
}

static void merge_equal_pictures(struct report_pictures *p)
{
	size_t n = 0;

	if (p->n)
		qsort(p->list, p->n, sizeof(p->list[0]), compare_pictures);
	for (size_t i = 0; i < p->n; i++)
		if (n == 0 || p->list[n - 1].rec != p->list[i].rec)
			p->list[n++] = p->list[i];
	p->n = n;
}

struct picture_loop {
	struct report_picture *list;
	double timeout_s;
};

static void decode_picture(int64_t i0, int64_t i1, void *ctx)
{
	const struct picture_loop *loop = ctx;

	for (int64_t i = i0; i < i1; i++) {
		struct report_picture *picture = &loop->list[i];
		struct vfm_thumbnails t = {0};
		int rc = vfm_thumbnails(&t, picture->rec, 1, PICTURE_W, PICTURE_H, loop->timeout_s, 1, &picture->why);

		if (rc >= 0)
			rc = vfm_jpeg_encode(&picture->jpeg, t.rgb, t.width, t.height, &picture->why);
		picture->width = t.width;
		picture->height = t.height;
		picture->rc = rc;
		free(t.rgb);
	}
}

int report_pictures_decode(struct report_pictures *p, double timeout_s, struct vfm_err *err)
{
	struct picture_loop loop;

	merge_equal_pictures(p);
	loop = (struct picture_loop){.list = p->list, .timeout_s = timeout_s};
	vfm_par_for((int64_t)p->n, 1, decode_picture, &loop);
	for (size_t i = 0; i < p->n; i++)
		if (p->list[i].rc < 0 && p->list[i].rc != VFM_EINPUT && p->list[i].rc != VFM_EUSAGE)
			return vfm_fail(err, p->list[i].rc, "%s", p->list[i].why.msg);
	return 0;
}

static const struct report_picture *find_picture(const struct report_pictures *p, const json_t *rec)
{
	const struct report_picture key = {.rec = rec};

	return p->n ? bsearch(&key, p->list, p->n, sizeof(p->list[0]), compare_pictures) : NULL;
}

void report_figure(struct report_pictures *p, struct vfm_buf *b, const json_t *rec, const char *id, const char *note)
{
	const struct report_picture *picture = rec ? find_picture(p, rec) : NULL;

	vfm_buf_adds(b, "<figure class=box>");
	if (picture && picture->rc >= 0)
		vfm_html_jpeg(b, picture->jpeg.data, picture->jpeg.len, picture->width, picture->height);
	else
		vfm_html_addf(b, "<p class='none failed'>%s</p>", picture ? picture->why.msg : "not in these files");
	vfm_html_addf(b, *note ? "<figcaption>%s<br>" : "<figcaption>%s", note);
	if (rec) {
		report_add_source(b, p->links, rec);
		vfm_buf_adds(b, "<br>");
		vfm_record_facts_html(b, rec);
	} else {
		vfm_html_addf(b, "<b>%s</b>", id);
	}
}

void report_figure_end(struct vfm_buf *b)
{
	vfm_buf_adds(b, "</figcaption></figure>\n");
}
