#include "train/run/run_samples.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "data/record/thumbnail.h"
#include "media/draw/html.h"

enum { SHOWN_STEPS = 6, SHOWN_SAMPLES = 4, FRAME_W = 240, FRAME_H = 180, DECODE_S = 20 };

/* ---- links ---- */

/* Appends a path as a part of a URL (RFC 3986). */
static void add_url(struct vfm_buf *b, const char *path)
{
	for (const unsigned char *s = (const unsigned char *)path; *s; s++)
		vfm_buf_addf(b, isalnum(*s) || strchr("-._~/", *s) ? "%c" : "%%%02X", *s);
}

/* Appends the relative link from a folder to a file; both paths are real paths. */
static void add_relative_link(struct vfm_buf *b, const char *from, const char *file)
{
	size_t same = 0, i = 0, end = strlen(from); /* same: bytes of the folders that both paths begin with */

	for (; from[i] && from[i] == file[i]; i++)
		if (from[i] == '/')
			same = i + 1;
	if (!from[i] && file[i] == '/')
		same = i + 1;
	for (const char *s = from + (same < end ? same : end); *s;) {
		vfm_buf_adds(b, "../");
		s += strcspn(s, "/");
		s += *s == '/';
	}
	add_url(b, file + same);
}

/* ---- figures ---- */

static int is_sample(const struct dirent *e)
{
	static const char *const suffixes[] = {".png", ".jpg", ".jpeg", ".mp4"};
	const char *dot = strrchr(e->d_name, '.');
	bool is = false;

	for (size_t i = 0; dot && i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
		is = is || !strcmp(dot, suffixes[i]);
	return is;
}

/* The sample `name` of an evaluation, if its folder has it: its middle frame, scaled down, with a link to it. */
static void add_sample_figure(struct vfm_buf *b, const char *folder, const char *name, const char *page_dir)
{
	char *path = vfm_strfmt("%s/%s", folder, name);
	json_t *rec = json_pack("{s:s}", "src", path);
	struct vfm_thumbnails t = {0};

	if (rec && access(path, R_OK) == 0) {
		vfm_buf_adds(b, "<figure>");
		if (vfm_thumbnails(&t, rec, 1, FRAME_W, FRAME_H, DECODE_S, NULL) < 0 ||
			vfm_html_picture(b, t.rgb, t.width, t.height, name, NULL) < 0)
			vfm_buf_adds(b, "<p class='none dim'>no picture</p>");
		vfm_buf_adds(b, "<figcaption><a href='");
		add_relative_link(b, page_dir, path);
		vfm_html_addf(b, "'>step %lld</a></figcaption></figure>\n",
			atoll(strrchr(folder, '/') + sizeof("/step-") - 1));
	}
	free(t.rgb);
	json_decref(rec);
	free(path);
}

static int is_step_folder(const struct dirent *e)
{
	return !strncmp(e->d_name, "step-", 5) && isdigit((unsigned char)e->d_name[5]);
}

static void free_entries(struct dirent **list, int n)
{
	for (int i = 0; i < n; i++)
		free(list[i]);
	if (n >= 0)
		free(list);
}

/* A row for each of the first samples of the newest evaluation. */
static void add_sample_rows(struct vfm_buf *b, char **folders, int n, const char *page_dir)
{
	struct dirent **list = NULL;
	int found = scandir(folders[n - 1], &list, is_sample, alphasort);

	for (int i = 0; i < found && i < SHOWN_SAMPLES; i++) {
		vfm_html_addf(b,
			"<p class='dim small'>%s</p>\n<div class=shots "
			"style='grid-template-columns:repeat(%d,minmax(0,1fr))'>\n",
			list[i]->d_name, SHOWN_STEPS);
		for (int k = 0; k < n; k++)
			add_sample_figure(b, folders[k], list[i]->d_name, page_dir);
		vfm_buf_adds(b, "</div>\n");
	}
	free_entries(list, found);
}

void vfm_run_samples_html(struct vfm_buf *b, const char *name, const char *run_dir, const char *page_dir)
{
	char *given = vfm_strfmt("%s/samples", run_dir), *dir = realpath(given, NULL), *page = realpath(page_dir, NULL);
	char *folders[SHOWN_STEPS];
	struct dirent **list = NULL;
	int n = dir && page ? scandir(dir, &list, is_step_folder, alphasort) : -1;
	int shown = n < SHOWN_STEPS ? n : SHOWN_STEPS;

	for (int i = 0; i < shown; i++)
		folders[i] = vfm_strfmt("%s/%s", dir, list[shown > 1 ? i * (n - 1) / (shown - 1) : 0]->d_name);
	if (shown > 0) {
		vfm_html_addf(b, "<h2>Samples of %s</h2>\n", name);
		add_sample_rows(b, folders, shown, page);
	}
	for (int i = 0; i < shown; i++)
		free(folders[i]);
	free_entries(list, n);
	free(given);
	free(dir);
	free(page);
}
