/* text.h - files, times and numbers as text of the page. */
#ifndef VFM_CURATE_REPORT_TEXT_H
#define VFM_CURATE_REPORT_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

/* How the page names files.  A relative name, as in `src` of a record, refers to the current folder, and its link to
 * the folder of the page: both may move together.  An absolute name becomes a file: URL. */
struct report_links {
	char *to_here; /* the URL of the current folder from that of the page: "", "../" */
};
/* page: the path of the page.  If its folder does not exist, links are as if it were the current folder. */
void report_links_init(struct report_links *l, const char *page);
void report_links_release(struct report_links *l);

/* Appends "1 record", "7 records". */
void report_add_records(struct vfm_buf *b, int64_t n);

/* Appends a link to a file or folder, with its whole path as the text. */
void report_add_link(struct vfm_buf *b, const struct report_links *l, const char *path);
/* Appends the name of the source file of a record as a link to the range of the record in it, and the range.  Appends a
 * second link to the file of the clip if it is another one. */
void report_add_source(struct vfm_buf *b, const struct report_links *l, const json_t *rec);

/* Returns the file that a record came from: `src`, or that of `origin` after clip; or NULL. */
const char *report_source_of(const json_t *rec);
bool report_is_image(const json_t *rec);

enum { REPORT_TEXT = 48 };
/* Writes "h:mm:ss", or "7.4 s" below ten seconds, or "0 s".  Returns text. */
const char *report_time(char text[REPORT_TEXT], double seconds);
/* Writes a value in four digits; whole numbers below 10 million as they are.  Returns text. */
const char *report_value(char text[REPORT_TEXT], double x);

#endif
