/* pictures.h - the pictures of the page: the middle frames of records.
 *
 *	report_pictures_want(p, rec);                   // for each figure
 *	report_pictures_decode(p, timeout_s, err);      // each record once, on all compute threads
 *	report_figure(p, b, rec, NULL, note);           // once or several times
 *
 * Each picture is a JPEG of at most 240 x 180 pixels, some 12 kB in the page. */
#ifndef VFM_CURATE_REPORT_PICTURES_H
#define VFM_CURATE_REPORT_PICTURES_H

#include <jansson.h>

#include "base/err.h"
#include "base/mem.h"
#include "curate/report/text.h"

struct report_pictures {
	const struct report_links *links; /* belongs to the caller */
	struct report_picture *list;      /* [n] in the order of their addresses after decode */
	size_t n, cap;
};
void report_pictures_release(struct report_pictures *p);

/* The record must outlive `p`. */
void report_pictures_want(struct report_pictures *p, const json_t *rec);
/* A picture that cannot be decoded keeps the reason.  VFM_EENV: the machine failed. */
int report_pictures_decode(struct report_pictures *p, double timeout_s, struct vfm_err *err);

/* Appends the beginning of a figure: the picture, or why there is none, and a caption with the note, which is plain
 * text.  The caller continues the caption and calls report_figure_end.  rec: NULL if only the id is known. */
void report_figure(struct report_pictures *p, struct vfm_buf *b, const json_t *rec, const char *id, const char *note);
void report_figure_end(struct vfm_buf *b);

#endif
