/* caption_files.c - looks a media file up in the text files and tables around it. */
#include "curate/table/caption_files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "curate/table/caption_table.h"
#include "curate/table/caption_value.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/input.h"
#include "io/json.h"
#include "io/names.h"

enum { MAX_TEXT = 1 << 20, MAX_JSON = 8 << 20, LEVELS = 3, MAX_SUFFIXES = 3 };

static const char *const searched_suffixes[MAX_SUFFIXES] = {".txt", ".caption", ".json"};

/* Tables that may be about something else are `maybe` (caption_table.h). */
static const struct {
	const char *name;
	bool maybe;
} table_names[] = {{"metadata.jsonl", true}, {"metadata.csv", true}, {"metadata.json", true},
	{"metadata.parquet", true}, {"videos2caption.json", false}, {"captions.json", true}};
enum { N_TABLE_NAMES = sizeof(table_names) / sizeof(table_names[0]) };

static const char *const list_names[] = {"videos.txt", "video.txt", "images.txt", "image.txt", NULL};
static const char *const list_captions[] = {"prompt.txt", "prompts.txt", "captions.txt", "caption.txt", NULL};

struct caption_source {
	struct vfm_caption_table table;
	char *base;       /* absolute path of its folder, with a slash at the end */
	const char *list; /* NULL, or the file of the names, of two lists */
	int64_t used;     /* files that have a caption from it */
};

struct vfm_caption_files {
	const char *from;
	bool by_line;
	const char *suffix[MAX_SUFFIXES];
	int n_suffixes;
	int64_t of_suffix[MAX_SUFFIXES]; /* captions that were found */
	char *cwd;                       /* with a slash at the end */
	FILE *store;
	struct vfm_names folders; /* that were searched for tables */
	int *first;               /* [folders.n + 1] of their tables in `sources` */
	size_t first_cap;
	struct caption_source *sources;
	int n_sources;
	size_t sources_cap;
	struct vfm_names used; /* files with captions that were read, and tables of other things */
	struct vfm_names kept, named;
	int64_t at; /* the next of `named` */
	int64_t files, found, empty, json_without;
	struct vfm_named not_tables;
	struct vfm_named without; /* videos and images that have no caption */
	char *why_not;            /* of the first */
};

/* ---- paths ---- */

static char *absolute_path(const struct vfm_caption_files *c, const char *path)
{
	char *plain = vfm_plain_path(path), *all;

	if (*plain == '/')
		return plain;
	all = vfm_strfmt("%s%s", c->cwd, plain);
	free(plain);
	return all;
}

/* Returns the length of the folder of a path, with its slash; 0 without a folder. */
static size_t folder_len(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Returns FOLDER/NAME.SUFFIX for a file FOLDER/NAME.EXT; the caller frees it. */
static char *path_with_suffix(const char *src, const char *suffix)
{
	const char *name = src + folder_len(src), *dot = strrchr(name, '.');
	size_t len = dot && dot > name ? (size_t)(dot - src) : strlen(src);

	return vfm_strfmt("%.*s%s", (int)len, src, suffix);
}

static void mark_used(struct vfm_caption_files *c, const char *path)
{
	char *plain = vfm_plain_path(path);

	vfm_names_add(&c->used, plain);
	free(plain);
}

/* ---- text files ---- */

static int read_json_caption(struct vfm_caption_files *c, const char *text, size_t len, const char *what,
	json_t **caption, struct vfm_err *err)
{
	json_t *doc = vfm_json_parse_foreign(text, len, what, err);
	const json_t *value;
	int rc;

	if (!doc)
		return VFM_EINPUT;
	value = json_is_object(doc) ? vfm_caption_at(doc, vfm_caption_keys) : NULL;
	if (!value && c->from)
		rc = vfm_fail(err, VFM_EINPUT, "%s has no caption (a key caption, cap, text or prompt)", what);
	else
		rc = vfm_caption_of_json(caption, value, what, err);
	json_decref(doc);
	return rc;
}

/* Sets *caption to that of a text file, if the file exists. */
static int read_text_file(struct vfm_caption_files *c, const char *path, json_t **caption, struct vfm_err *err)
{
	bool is_json = vfm_name_ends(path, ".json");
	char *text, *what;
	struct stat st;
	size_t len;
	int rc;

	*caption = NULL;
	if (lstat(path, &st) != 0) /* a dangling link is a fault */
		return 0;
	rc = vfm_read_regular(path, is_json ? MAX_JSON : MAX_TEXT, &text, &len, err);
	if (rc < 0)
		return vfm_err_context(err, "the caption");
	what = vfm_strfmt("the caption '%s'", path);
	if (is_json)
		rc = read_json_caption(c, text, len, what, caption, err);
	else
		rc = vfm_caption_of_text(caption, text, len, c->by_line, what, err);
	if (rc == 0 && !*caption)
		c->json_without++;
	else
		mark_used(c, path);
	free(what);
	free(text);
	return rc < 0 && rc != VFM_EENV ? VFM_EINPUT : rc;
}

/* ---- tables ---- */

/* Adds a table, or a table of lists.  Returns 1, or 0 if it is none. */
static int add_caption_source(
	struct vfm_caption_files *c, const char *path, const char *list, bool maybe, struct vfm_err *err)
{
	struct caption_source s = {.list = list};
	char *absolute;
	int rc;

	if (!c->store)
		TRY(vfm_unlinked_temp(&c->store, err));
	rc = list ? vfm_caption_lists_open(&s.table, list, path, c->store, err)
		  : vfm_caption_table_open(&s.table, path, c->store, maybe, err);
	if (rc >= 0)
		mark_used(c, path);
	if (rc == 0) {
		vfm_named_add(&c->not_tables, path);
		if (!c->why_not)
			c->why_not = vfm_strdup(err->msg);
	}
	if (rc <= 0) {
		vfm_caption_table_close(&s.table);
		return rc < 0 && !c->from ? vfm_err_context(err, "captions (--captions none: without)") : rc;
	}
	absolute = absolute_path(c, path);
	s.base = vfm_strfmt("%.*s", (int)folder_len(absolute), absolute);
	free(absolute);
	vfm_grow(&c->sources, &c->sources_cap, (size_t)c->n_sources + 1, sizeof(c->sources[0]));
	c->sources[c->n_sources++] = s;
	return 1;
}

static char *first_that_exists(const char *folder, const char *const *names)
{
	for (; *names; names++) {
		char *path = vfm_strfmt("%s%s", folder, *names);

		if (access(path, F_OK) == 0)
			return path;
		free(path);
	}
	return NULL;
}

static int add_lists(struct vfm_caption_files *c, const char *folder, struct vfm_err *err)
{
	char *list = first_that_exists(folder, list_names);
	char *captions = list ? first_that_exists(folder, list_captions) : NULL;
	int rc = 0;

	if (captions)
		rc = add_caption_source(c, captions, list, false, err);
	if (rc == 1) {
		mark_used(c, list);
		list = NULL; /* the source has it */
	}
	free(captions);
	free(list);
	return rc < 0 ? rc : 0;
}

/* Sets [*begin, *end) to the tables of a folder, "" or with a slash at its end. */
static int find_folder_tables(
	struct vfm_caption_files *c, const char *folder, int *begin, int *end, struct vfm_err *err)
{
	int64_t at = vfm_names_find(&c->folders, folder);
	int rc = 0;

	if (at < 0) {
		for (int i = 0; i < N_TABLE_NAMES && rc >= 0; i++) {
			char *path = vfm_strfmt("%s%s", folder, table_names[i].name);

			if (access(path, F_OK) == 0)
				rc = add_caption_source(c, path, NULL, table_names[i].maybe, err);
			free(path);
		}
		if (rc >= 0)
			rc = add_lists(c, folder, err);
		if (rc < 0)
			return rc;
		at = vfm_names_add(&c->folders, folder);
		vfm_grow(&c->first, &c->first_cap, (size_t)at + 2, sizeof(c->first[0]));
		c->first[at + 1] = c->n_sources;
	}
	*begin = c->first[at];
	*end = c->first[at + 1];
	return 0;
}

/* Finds the row of a file: by its name within the folder of the table or in videos/, as it was named, by its absolute
 * name, and in a table of --captions also by its last component. */
static int64_t find_caption_row(
	const struct vfm_caption_files *c, const struct caption_source *s, const char *src, const char *absolute)
{
	const char *within = strncmp(absolute, s->base, strlen(s->base)) ? NULL : absolute + strlen(s->base);
	const char *tries[] = {within, src, absolute, within && !strncmp(within, "videos/", 7) ? within + 7 : NULL,
		c->from ? src + folder_len(src) : NULL};

	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		int64_t row = tries[i] ? vfm_names_find(&s->table.names, tries[i]) : -1;

		if (row >= 0)
			return row;
	}
	return -1;
}

/* A row is that of one file. */
static int use_caption_row(struct caption_source *s, int64_t i, const char *absolute, struct vfm_err *err)
{
	struct vfm_caption_row *r = &s->table.rows[i];
	uint64_t user = vfm_fnv64(absolute, strlen(absolute)) | 1;

	if (r->user && r->user != user)
		return vfm_fail(err, VFM_EINPUT, "'%s', line %lld: the name '%.200s' is that of several files",
			s->table.path, (long long)r->place, vfm_names_at(&s->table.names, i));
	r->user = user;
	return 0;
}

/* ---- a file ---- */

struct caption_search {
	json_t *caption;
	char *source; /* of it */
};

/* Adds a caption that was found, and takes its reference; NULL: none. */
static int add_found(struct caption_search *f, json_t *caption, const char *source, struct vfm_err *err)
{
	int rc = 0;

	if (caption && f->caption && !json_equal(caption, f->caption))
		rc = vfm_fail(err, VFM_EINPUT, "'%s' and '%s' have different captions (--captions chooses)", f->source,
			source);
	if (caption && !f->caption) {
		f->caption = json_incref(caption);
		f->source = vfm_strdup(source);
	}
	json_decref(caption);
	return rc;
}

static int search_text_files(
	struct vfm_caption_files *c, struct caption_search *f, const char *src, struct vfm_err *err)
{
	for (int i = 0; i < c->n_suffixes; i++) {
		char *path = path_with_suffix(src, c->suffix[i]);
		json_t *caption = NULL;
		int rc = strcmp(path, src) ? read_text_file(c, path, &caption, err) : 0;

		c->of_suffix[i] += caption != NULL;
		if (rc == 0)
			rc = add_found(f, caption, path, err);
		free(path);
		TRY(rc);
	}
	return 0;
}

static int search_caption_tables(struct vfm_caption_files *c, struct caption_search *f, int begin, int end,
	const char *src, const char *absolute, struct vfm_err *err)
{
	for (int i = begin; i < end; i++) {
		struct caption_source *s = &c->sources[i];
		int64_t row = find_caption_row(c, s, src, absolute);
		json_t *caption;

		if (row < 0)
			continue;
		TRY(use_caption_row(s, row, absolute, err));
		TRY(vfm_caption_table_get(&s->table, row, c->store, &caption, err));
		s->used += caption != NULL;
		TRY(add_found(f, caption, s->table.path, err));
	}
	return 0;
}

static int search_folders(struct vfm_caption_files *c, struct caption_search *f, const char *src, const char *absolute,
	struct vfm_err *err)
{
	char *folder = vfm_strfmt("%.*s", (int)folder_len(src), src);
	int rc = 0, begin, end;

	for (int i = 0; i < LEVELS && rc == 0; i++) {
		size_t len = strlen(folder);

		rc = find_folder_tables(c, folder, &begin, &end, err);
		if (rc == 0)
			rc = search_caption_tables(c, f, begin, end, src, absolute, err);
		if (len < 2) /* "" or "/" */
			break;
		folder[len - 1] = 0;
		folder[folder_len(folder)] = 0;
	}
	free(folder);
	return rc;
}

int vfm_caption_files_find(struct vfm_caption_files *c, const char *src, json_t **caption, struct vfm_err *err)
{
	char *plain = vfm_plain_path(src), *absolute = absolute_path(c, plain);
	struct caption_search f = {0};
	int rc = search_text_files(c, &f, plain, err);

	if (rc == 0 && !c->from)
		rc = search_folders(c, &f, plain, absolute, err);
	else if (rc == 0)
		rc = search_caption_tables(c, &f, 0, c->n_sources, plain, absolute, err);
	*caption = rc == 0 ? json_incref(f.caption) : NULL;
	c->files++;
	c->found += *caption != NULL;
	if (rc == 0 && !*caption)
		vfm_named_add(&c->without, plain);
	c->empty += *caption && vfm_caption_is_empty(*caption);
	json_decref(f.caption);
	free(f.source);
	free(absolute);
	free(plain);
	return rc;
}

/* ---- other files ---- */

static bool is_caption_name(const struct vfm_caption_files *c, const char *path)
{
	const char *name = path + folder_len(path);
	size_t len = strlen(name);

	for (int i = 0; i < c->n_suffixes; i++) {
		size_t n = strlen(c->suffix[i]);

		if (len > n && !strcmp(name + len - n, c->suffix[i]))
			return true;
	}
	for (int i = 0; i < N_TABLE_NAMES && !c->from; i++)
		if (!strcmp(name, table_names[i].name))
			return true;
	return vfm_names_find(&c->used, path) >= 0; /* the table of --captions */
}

bool vfm_caption_files_keep(struct vfm_caption_files *c, const char *path, bool named)
{
	char *plain = vfm_plain_path(path);
	bool keeps = is_caption_name(c, plain);

	if (keeps && named)
		vfm_names_add(&c->named, path);
	else if (keeps)
		vfm_names_add(&c->kept, plain);
	free(plain);
	return keeps;
}

const char *vfm_caption_files_rest(struct vfm_caption_files *c)
{
	while (c->at < c->named.n) {
		const char *path = vfm_names_at(&c->named, c->at++);
		char *plain = vfm_plain_path(path);
		bool is_used = vfm_names_find(&c->used, plain) >= 0;

		free(plain);
		if (!is_used)
			return path;
	}
	return NULL;
}

/* ---- the report ---- */

/* Returns whether the file of a row exists. */
static bool has_file(const struct vfm_caption_files *c, const struct caption_source *s, const char *name)
{
	const char *before[] = {"", s->base, c->cwd};
	char *path = vfm_strfmt("%svideos/%s", s->base, name);
	bool exists = *name != '/' && access(path, F_OK) == 0;

	free(path);
	for (int i = *name == '/' ? 0 : 1; i < (*name == '/' ? 1 : 3) && !exists; i++) {
		path = vfm_strfmt("%s%s", before[i], name);
		exists = access(path, F_OK) == 0;
		free(path);
	}
	return exists;
}

/* Adds the rows of tables whose files do not exist. */
static void list_missing_files(const struct vfm_caption_files *c, struct vfm_named *missing)
{
	for (int i = 0; i < c->n_sources; i++) {
		const struct caption_source *s = &c->sources[i];

		for (int64_t k = 0; k < s->table.names.n; k++) {
			const char *name = vfm_names_at(&s->table.names, k);

			if (!s->table.rows[k].user && !has_file(c, s, name))
				vfm_named_add(missing, name);
		}
	}
}

static void report_found(const struct vfm_caption_files *c, struct vfm_buf *b)
{
	const char *between = ", from ";

	if (!c->found && !c->from)
		return;
	vfm_buf_addf(b, "captions: %lld of %lld", (long long)c->found, (long long)c->files);
	for (int i = 0; i < c->n_suffixes; i++) {
		if (!c->of_suffix[i])
			continue;
		vfm_buf_addf(b, "%s%s", between, c->suffix[i]);
		between = ", ";
	}
	for (int i = 0, n = 0; i < c->n_sources && n <= 4; i++) {
		if (!c->sources[i].used)
			continue;
		vfm_buf_addf(b, n < 4 ? "%s'%s'" : "%s...", between, c->sources[i].table.path);
		between = ", ";
		n++;
	}
	if (c->empty)
		vfm_buf_addf(b, "; %lld are empty", (long long)c->empty);
	vfm_buf_adds(b, "\n");
}

void vfm_caption_files_report(struct vfm_caption_files *c, struct vfm_buf *lines, struct vfm_named *left_out)
{
	struct vfm_named alone = {0}, missing = {0};

	for (int64_t i = 0; i < c->kept.n; i++) {
		const char *path = vfm_names_at(&c->kept, i);
		bool is_text = c->from || (c->found && !vfm_name_ends(path, ".json"));

		if (vfm_names_find(&c->used, path) < 0)
			vfm_named_add(is_text ? &alone : left_out, path);
	}
	report_found(c, lines);
	if (c->found && c->without.n)
		vfm_buf_addf(lines, "captions: %lld of %lld have none: %s\n", (long long)c->without.n,
			(long long)c->files, c->without.names);
	if (alone.n)
		vfm_buf_addf(lines, "captions: %lld files have no video or image of their name: %s\n",
			(long long)alone.n, alone.names);
	list_missing_files(c, &missing);
	if (missing.n)
		vfm_buf_addf(lines, "captions: the tables name %lld files that do not exist: %s\n",
			(long long)missing.n, missing.names);
	if (c->json_without && c->found)
		vfm_buf_addf(lines, "captions: %lld .json files have no key caption, cap, text or prompt\n",
			(long long)c->json_without);
	if (c->not_tables.n)
		vfm_buf_addf(lines, "captions: no tables of captions: %s (the first: %s)\n", c->not_tables.names,
			c->why_not);
}

/* ---- open and close ---- */

static int choose_caption_source(struct vfm_caption_files *c, struct vfm_err *err)
{
	char *cwd = getcwd(NULL, 0);

	if (!cwd)
		return vfm_fail_errno(err, VFM_EENV, "cannot tell the current folder");
	c->cwd = vfm_strfmt("%s%s", cwd, strcmp(cwd, "/") ? "/" : "");
	free(cwd);
	vfm_grow(&c->first, &c->first_cap, 1, sizeof(c->first[0]));
	c->first[0] = 0;
	if (!c->from) {
		memcpy(c->suffix, searched_suffixes, sizeof(searched_suffixes));
		c->n_suffixes = MAX_SUFFIXES;
	} else if (*c->from == '.' && c->from[1] && !strchr(c->from, '/')) {
		c->suffix[c->n_suffixes++] = c->from;
	} else if (add_caption_source(c, c->from, NULL, false, err) < 0) {
		return vfm_err_context(err, "--captions");
	}
	return 0;
}

int vfm_caption_files_open(struct vfm_caption_files **out, const char *from, bool by_line, struct vfm_err *err)
{
	struct vfm_caption_files *c = vfm_calloc(1, sizeof(*c));
	int rc;

	c->from = from;
	c->by_line = by_line;
	rc = choose_caption_source(c, err);
	if (rc < 0) {
		vfm_caption_files_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

void vfm_caption_files_close(struct vfm_caption_files *c)
{
	if (!c)
		return;
	for (int i = 0; i < c->n_sources; i++) {
		vfm_caption_table_close(&c->sources[i].table);
		free((void *)(uintptr_t)c->sources[i].list);
		free(c->sources[i].base);
	}
	if (c->store)
		fclose(c->store);
	free(c->sources);
	free(c->first);
	vfm_names_release(&c->folders);
	vfm_names_release(&c->used);
	vfm_names_release(&c->kept);
	vfm_names_release(&c->named);
	free(c->cwd);
	free(c->why_not);
	free(c);
}
