/* text.c - links, times and numbers; see text.h. */
#include "curate/report/text.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/record/record.h"
#include "io/file.h"
#include "io/input.h"
#include "media/draw/html.h"

/* ---- links ---- */

void report_links_init(struct report_links *l, const char *page)
{
	char *dir = vfm_dir_of(page), from[PATH_MAX], real[PATH_MAX], *here;
	struct vfm_buf url = {0};

	vfm_buf_adds(&url, "");
	if (realpath(dir, from) && realpath(".", real)) {
		here = vfm_strfmt("%s/", real);
		vfm_html_relative_url(&url, from, here);
		free(here);
	}
	l->to_here = url.data;
	free(dir);
}

void report_links_release(struct report_links *l)
{
	free(l->to_here);
}

/* The URL of a file, or of the tar that contains it.  The caller frees it. */
static char *make_url(const struct report_links *l, const char *path)
{
	struct vfm_member_name member;
	char *file = vfm_member_parse(&member, path) ? vfm_strfmt("%.*s", (int)member.tar_len, path) : vfm_strdup(path);
	struct vfm_buf url = {0};

	vfm_buf_adds(&url, *file == '/' ? "file://" : l->to_here);
	vfm_html_url(&url, file);
	free(file);
	return url.data;
}

void report_add_records(struct vfm_buf *b, int64_t n)
{
	vfm_html_addf(b, n == 1 ? "%'lld record" : "%'lld records", (long long)n);
}

void report_add_link(struct vfm_buf *b, const struct report_links *l, const char *path)
{
	char *url = make_url(l, path);

	vfm_html_addf(b, "<a href='%s'>%s</a>", url, path);
	free(url);
}

const char *report_source_of(const json_t *rec)
{
	const char *src = vfm_rec_str(json_object_get(rec, "origin"), "src", vfm_rec_str(rec, "src", NULL));

	return src && *src ? src : NULL;
}

bool report_is_image(const json_t *rec)
{
	return !strcmp(vfm_rec_str(rec, "kind", ""), "image");
}

/* Returns the last part of a path, without the folder. */
static const char *last_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash && slash[1] ? slash + 1 : path;
}

static void add_range_s(struct vfm_buf *b, double start, double end)
{
	char from[REPORT_TEXT], to[REPORT_TEXT];

	if (end < 60)
		vfm_html_addf(b, " <span>%.1f &ndash; %.1f s</span>", start, end);
	else
		vfm_html_addf(b, " <span>%s &ndash; %s</span>", report_time(from, start), report_time(to, end));
}

void report_add_source(struct vfm_buf *b, const struct report_links *l, const json_t *rec)
{
	const json_t *of = json_object_get(rec, "origin");
	const char *path = report_source_of(rec), *clip = vfm_rec_str(rec, "src", "");
	char range[64] = "", *url;
	double start, end;
	bool ranged;

	if (!path)
		return;
	of = of ? of : rec;
	ranged = vfm_rec_num(of, "start_s", &start) && vfm_rec_num(of, "end_s", &end) && start >= 0 && end > start &&
		end < 1e9;
	url = make_url(l, path);
	if (ranged)
		snprintf(range, sizeof(range), "#t=%.3f,%.3f", start, end); /* media fragment: the browser plays it */
	vfm_html_addf(b, "<a href='%s%s' title='%s'>%s</a>", url, range, path, last_name(path));
	free(url);
	if (ranged)
		add_range_s(b, start, end);
	if (*clip && strcmp(clip, path) != 0) {
		url = make_url(l, clip);
		vfm_html_addf(b, " <a href='%s' title='%s'>clip</a>", url, clip);
		free(url);
	}
}

/* ---- numbers ---- */

const char *report_time(char text[REPORT_TEXT], double seconds)
{
	double whole = rint(seconds);

	if (seconds < 10)
		snprintf(text, REPORT_TEXT, seconds <= 0 ? "0 s" : seconds < 1 ? "%.2f s" : "%.1f s", seconds);
	else
		snprintf(text, REPORT_TEXT, "%.0f:%02d:%02d", floor(whole / 3600), (int)(fmod(whole, 3600) / 60),
			(int)fmod(whole, 60));
	return text;
}

const char *report_value(char text[REPORT_TEXT], double x)
{
	snprintf(text, REPORT_TEXT, fabs(x) < 1e7 && x == rint(x) ? "%.0f" : "%.4g", x == 0 ? 0 : x);
	return text;
}
