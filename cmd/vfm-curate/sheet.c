/* sheet - a page of clips, for a person to look at. */
#include <fnmatch.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "io/file.h"
#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "curate/report/report.h"
#include "data/record/caption.h"
#include "data/record/share.h"
#include "data/record/stage.h"
#include "data/record/clip_reader.h"
#include "media/draw/html.h"

enum { TIMEOUT_S = 600 };

struct sheet {
	struct vfm_buf page;
	int64_t max, columns, frames, width, shown, left_out;
	bool all;
};

static void add_clip_caption(struct vfm_buf *b, const json_t *rec)
{
	const char *why = vfm_rec_str(rec, "drop", vfm_rec_str(rec, "error", NULL)), *key;
	struct vfm_captions c;
	json_t *v;

	vfm_buf_adds(b, "<figcaption>");
	vfm_record_facts_html(b, rec);
	if (vfm_captions_of(&c, rec, NULL) == 0)
		for (int i = 0; i < c.n && c.list[i].value; i++)
			vfm_html_addf(b, "<p>%s%s%s", c.list[i].name, *c.list[i].name ? ": " : "",
				json_string_value(c.list[i].value));
	if (why)
		vfm_html_addf(b, "<p class=failed>%s", why);
	vfm_buf_adds(b, "<p>");
	json_object_foreach(json_object_get(rec, "score"), key, v)
	{
		if (json_is_number(v))
			vfm_html_addf(b, "<span>%s %.3g</span> ", key, json_number_value(v));
	}
	vfm_buf_adds(b, "</figcaption>");
}

static int sheet_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct sheet *s = ctx;
	struct vfm_thumbnails t;
	bool marked = vfm_rec_is_out(rec);
	int rc;

	(void)out, (void)worker;
	if (marked && !s->all)
		return 0;
	if (s->shown >= s->max) {
		s->left_out++;
		return 0;
	}
	rc = vfm_thumbnails(
		&t, rec, (int)s->frames, (int)s->width, (int)s->width * 3 / 4, TIMEOUT_S, vfm_par_threads(), err);
	if (rc == 0) {
		s->shown++;
		vfm_html_addf(&s->page, "<figure class='box%s'><div class=strip>", marked ? " marked" : "");
		for (int i = 0; i < t.n && rc == 0; i++)
			rc = vfm_html_picture(&s->page, t.rgb + (size_t)i * (size_t)(t.width * t.height * 3), t.width,
				t.height, "", err);
		vfm_buf_adds(&s->page, "</div>");
		add_clip_caption(&s->page, rec);
		vfm_buf_adds(&s->page, "</figure>\n");
	}
	free(t.rgb);
	return rc;
}

static int draw_sheet(struct sheet *s, struct vfm_stage *stage, const char *path, struct vfm_err *err)
{
	int rc;

	vfm_html_addf(&s->page,
		"<div class='wide full'><div class=sheet "
		"style='grid-template-columns:repeat(%d,minmax(120px,%dpx))'>\n",
		(int)s->columns, (int)(s->frames * (s->width + 2) + 28));
	rc = vfm_stage_run(stage, NULL, err);
	if (s->left_out)
		vfm_info("%lld more clips did not go onto the sheet (--max)", (long long)s->left_out);
	if (rc == 0 && !s->shown)
		return vfm_fail(err, VFM_EINPUT, "no clips for the sheet '%s'", path);
	if (rc != 0 && (rc != VFM_EINPUT || !s->shown))
		return rc;
	vfm_buf_adds(&s->page, "</div></div>\n");
	vfm_html_end(&s->page);
	TRY(vfm_write_file(path, s->page.data, s->page.len, err));
	return rc;
}

int curate_output(char **path, const char *pattern, const struct vfm_stage *stage, struct vfm_err *err)
{
	int64_t share, n_shares;

	TRY(vfm_share_parse(stage->opts.share, &share, &n_shares, err));
	return vfm_share_file(path, pattern, share, err) < 0 ? vfm_err_context(err, "-o") : 0;
}

int curate_sheet(int argc, char **argv, struct vfm_err *err)
{
	struct sheet s = {.max = 48, .columns = 3, .frames = 3, .width = 160};
	struct vfm_stage stage = {
		.name = "sheet", .fn = sheet_record, .ctx = &s, .serial = true, .silent = true, .sees_all = true};
	const char *pattern = NULL, *title = NULL;
	char *path;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'o', "output", "FILE", "the page to write (%t: the share)", &pattern, .required = true},
		{VFM_OPT_INT, 0, "max", "N", "the first N clips (default 48)", &s.max},
		{VFM_OPT_INT, 0, "columns", "N", "clips in a row (default 3)", &s.columns},
		{VFM_OPT_INT, 0, "frames", "N", "frames of a clip (default 3)", &s.frames},
		{VFM_OPT_INT, 0, "width", "PIXELS", "of a frame (default 160)", &s.width},
		{VFM_OPT_STR, 0, "title", "TEXT", "heading of the page (default Clips)", &title},
		{VFM_OPT_FLAG, 0, "all", NULL, "dropped records too, in a red frame", &s.all},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate sheet",
		.synopsis = "-o FILE [OPTION ...] [FILE ...]",
		.summary = "draw a contact sheet of clips with their scores and captions",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	if (fnmatch("*.png", pattern, FNM_CASEFOLD) == 0)
		return vfm_fail(err, VFM_EUSAGE, "-o %s: the sheet is a page; name it .html", pattern);
	if (s.max < 1 || s.max > 2000 || s.columns < 1 || s.columns > 32 || s.frames < 1 || s.frames > 32 ||
		s.width < 16 || s.width > 1024 || s.columns * s.frames * s.width > 30000)
		return vfm_fail(
			err, VFM_EUSAGE, "--max, --columns, --frames, --width: a sheet of that size cannot be drawn");
	TRY(curate_output(&path, pattern, &stage, err));
	vfm_html_begin(&s.page, title ? title : "Clips", 0);
	rc = draw_sheet(&s, &stage, path, err);
	vfm_buf_release(&s.page);
	free(path);
	return rc;
}
