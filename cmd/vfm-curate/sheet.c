/* sheet - a contact sheet of clips, for a person to look at. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "data/record/caption.h"
#include "data/record/share.h"
#include "media/draw/sheet.h"

struct sheet {
	struct vfm_sheet *sheet;
	int64_t max, left_out;
	bool all;
};

static void add_score_text(struct vfm_buf *b, const json_t *score)
{
	const char *key;
	json_t *v;
	int n = 0;

	json_object_foreach((json_t *)(uintptr_t)score, key, v)
	{
		if (!json_is_number(v))
			continue;
		/* Four scores per line fit under three frames. */
		vfm_buf_addf(b, "%s%s %.3g", n == 0 ? "" : n % 4 ? "  " : "\n", key, json_number_value(v));
		n++;
	}
	if (n)
		vfm_buf_adds(b, "\n");
}

static char *words_for(const json_t *rec)
{
	struct vfm_buf b = {0};
	const char *why = vfm_rec_str(rec, "drop", vfm_rec_str(rec, "error", NULL));
	struct vfm_captions c;
	double w = 0, h = 0, s = 0;

	vfm_buf_addf(&b, "%s", vfm_rec_str(rec, "id", vfm_rec_str(rec, "src", "?")));
	if (vfm_rec_num(rec, "width", &w) && vfm_rec_num(rec, "height", &h))
		vfm_buf_addf(&b, "  %.0fx%.0f", w, h);
	if (vfm_rec_num(rec, "duration_s", &s) && s > 0)
		vfm_buf_addf(&b, "  %.3g s", s);
	vfm_buf_adds(&b, "\n");
	if (vfm_captions_of(&c, rec, NULL) == 0)
		for (int i = 0; i < c.n && c.list[i].value; i++)
			vfm_buf_addf(&b, "%s%s%s\n", c.list[i].name, *c.list[i].name ? ": " : "",
				json_string_value(c.list[i].value));
	if (why)
		vfm_buf_addf(&b, "%s\n", why);
	add_score_text(&b, json_object_get(rec, "score"));
	return b.data;
}

static int sheet_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct sheet *s = ctx;
	struct vfm_sheet_clip clip = {.marked = vfm_rec_is_out(rec)};
	struct vfm_rec_media m;
	char *text;
	int rc;

	(void)out, (void)worker;
	if (clip.marked && !s->all)
		return 0;
	if (vfm_sheet_count(s->sheet) >= s->max) {
		s->left_out++;
		return 0;
	}
	TRY(vfm_rec_media(rec, &m, err));
	text = words_for(rec);
	clip.path = m.src;
	clip.start = m.start_frame;
	clip.end = m.end_frame;
	clip.start_pts = m.start_pts;
	if (clip.end < 0 && json_integer_value(json_object_get(rec, "frames")) > 0)
		clip.end = clip.start + json_integer_value(json_object_get(rec, "frames"));
	clip.text = text;
	rc = vfm_sheet_add(s->sheet, &clip, err);
	vfm_buf_release(&(struct vfm_buf){.data = text});
	return rc;
}

int curate_output(char **path, const char *pattern, const struct vfm_stage *stage, struct vfm_err *err)
{
	int64_t share, n_shares;

	TRY(vfm_share_parse(stage->opts.share, &share, &n_shares, err));
	return vfm_share_file(path, pattern, share, err) < 0 ? vfm_err_context(err, "-o") : 0;
}

/* Reads the records, and writes the sheet also if some of them are unreadable. */
static int run_sheet(struct sheet *s, struct vfm_stage *stage, const char *path, const char *title, struct vfm_err *err)
{
	int rc = vfm_stage_run(stage, NULL, err), end;

	if (s->left_out)
		vfm_info("%lld more clips did not go onto the sheet (-n)", (long long)s->left_out);
	if (rc < 0 && (rc != VFM_EINPUT || !vfm_sheet_count(s->sheet)))
		return rc;
	end = vfm_sheet_write(s->sheet, path, title, err);
	return end < 0 ? end : rc;
}

int curate_sheet(int argc, char **argv, struct vfm_err *err)
{
	struct sheet s = {.max = 48};
	struct vfm_stage stage = {
		.name = "sheet", .fn = sheet_record, .ctx = &s, .serial = true, .silent = true, .sees_all = true};
	struct vfm_sheet_opts so = {.timeout_s = 600};
	int64_t columns = 3, frames = 3, width = 160;
	const char *pattern = NULL, *title = NULL;
	char *path;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 'o', "output", "FILE", "the PNG to write (%t: the share)", &pattern},
		{VFM_OPT_INT, 'n', "max", "N", "the first N clips (default 48)", &s.max},
		{VFM_OPT_INT, 0, "columns", "N", "clips in a row (default 3)", &columns},
		{VFM_OPT_INT, 0, "frames", "N", "frames of a clip (default 3)", &frames},
		{VFM_OPT_INT, 0, "width", "PIXELS", "of a frame (default 160)", &width},
		{VFM_OPT_STR, 0, "title", "TEXT", "a line above", &title},
		{VFM_OPT_FLAG, 0, "all", NULL, "dropped records too, in a red frame", &s.all},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate sheet",
		.synopsis = "-o FILE [-n N] [--columns N] [--frames N] [--width PIXELS] [--title TEXT] "
			    "[--all] " VFM_STAGE_SYNOPSIS " [FILE ...]",
		.summary = "draw a contact sheet of clips with their scores and captions",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	if (!pattern)
		return vfm_fail(err, VFM_EUSAGE, "-o FILE is missing: the PNG to write");
	if (s.max < 1 || s.max > 2000 || columns < 1 || columns > 32 || frames < 1 || frames > 32 || width < 16 ||
		width > 1024 || columns * frames * width > 30000)
		return vfm_fail(
			err, VFM_EUSAGE, "-n, --columns, --frames, --width: a sheet of that size cannot be drawn");
	TRY(curate_output(&path, pattern, &stage, err));
	so.columns = (int)columns;
	so.frames = (int)frames;
	so.width = (int)width;
	so.height = (int)width * 3 / 4;
	so.video.threads = vfm_par_threads();
	s.sheet = vfm_sheet_new(&so);
	rc = run_sheet(&s, &stage, path, title, err);
	vfm_sheet_free(s.sheet);
	free(path);
	return rc;
}
