/* pth.c - interprets the pickle program of torch.save with a stack machine; runs no foreign code. */
#include "ckpt/pth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt_impl.h"
#include "io/file.h"
#include "io/json.h"

enum { PROGRAM_MAX = 8 << 20, MEMORY_PER_BYTE = 24, MEMORY_MIN = 64 << 10, TENSORS_MAX = 1 << 17, KEY_MAX = 1024 };

enum value_kind {
	VALUE_NONE,
	VALUE_BOOL,
	VALUE_INT,
	VALUE_TEXT,
	VALUE_TUPLE,
	VALUE_DICT,
	VALUE_NAME,
	VALUE_STORAGE,
	VALUE_TENSOR
};

struct value {
	enum value_kind kind;
	uint32_t n; /* bytes of a text, values of a tuple */
	union {
		int64_t i;     /* integer; index into known_names */
		const void *p; /* text, values, dict, storage, tensor */
	};
};
struct dict {
	struct dict *next; /* of all; the reader frees them */
	struct value *v;   /* [2 * n] key, value */
	size_t n, cap;
	bool has_tensors; /* among its values */
};
struct storage {
	enum vfm_dtype dtype;
	struct value key; /* a text */
	int64_t numel;
};
struct pth_tensor {
	const struct storage *storage;
	const char *fault; /* why it cannot be read; NULL: it can */
	ptrdiff_t at;      /* byte of the program after it */
	int64_t offset;
	int ndim;
	int64_t shape[VFM_NDIM_MAX];
};

enum callable { CALL_NONE, CALL_DICT, CALL_TENSOR, CALL_PARAMETER };
/* The names that a program may mention: what it may call, and the types of storages. */
static const struct {
	const char *name;
	enum callable call;
	enum vfm_dtype dtype;
} known_names[] = {
	{"collections OrderedDict", CALL_DICT, VFM_F32},
	{"torch._utils _rebuild_tensor_v2", CALL_TENSOR, VFM_F32},
	{"torch._utils _rebuild_parameter", CALL_PARAMETER, VFM_F32},
	{"torch FloatStorage", CALL_NONE, VFM_F32},
	{"torch BFloat16Storage", CALL_NONE, VFM_BF16},
	{"torch HalfStorage", CALL_NONE, VFM_F16},
	{"torch DoubleStorage", CALL_NONE, VFM_F64},
	{"torch LongStorage", CALL_NONE, VFM_I64},
	{"torch IntStorage", CALL_NONE, VFM_I32},
	{"torch ShortStorage", CALL_NONE, VFM_I16},
	{"torch CharStorage", CALL_NONE, VFM_I8},
	{"torch ByteStorage", CALL_NONE, VFM_U8},
	{"torch BoolStorage", CALL_NONE, VFM_BOOL},
};

struct machine {
	const char *file;
	const uint8_t *p, *end, *begin;
	struct value *stack, *memo;
	size_t *mark; /* heights of the stack */
	size_t n, n_marks, n_memo, stack_cap, memo_cap, mark_cap;
	size_t used; /* bytes of memory */
	struct dict *dicts;
	struct vfm_arena arena;
};

/* ---- the stack ---- */

static int bad_program(const struct machine *k, const char *why, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EUSAGE, "%s: data.pkl, byte %zd: %s", k->file, (ssize_t)(k->p - k->begin), why);
}

static void *new_value(struct machine *k, size_t size)
{
	k->used += (size + 15) / 16 * 16;
	return vfm_arena_alloc(&k->arena, size);
}

/* Grows an array to a capacity of at least n. */
static void grow_values(struct machine *k, struct value **v, size_t *cap, size_t n)
{
	size_t had = *cap;

	vfm_grow(v, cap, n, sizeof(**v));
	k->used += (*cap - had) * sizeof(**v);
}

static int push(struct machine *k, struct value v, struct vfm_err *err)
{
	if (k->used > MEMORY_MIN + MEMORY_PER_BYTE * (size_t)(k->end - k->begin))
		return bad_program(k, "its values need too much memory", err);
	grow_values(k, &k->stack, &k->stack_cap, k->n + 1);
	k->stack[k->n++] = v;
	return 0;
}

/* Returns the number of values above the last mark. */
static size_t height(const struct machine *k)
{
	return k->n - (k->n_marks ? k->mark[k->n_marks - 1] : 0);
}

/* Pops a value from above the last mark. */
static int pop(struct machine *k, struct value *v, struct vfm_err *err)
{
	if (!height(k))
		return bad_program(k, "the stack is empty", err);
	*v = k->stack[--k->n];
	return 0;
}

/* Takes n bytes of the program. */
static int take_bytes(struct machine *k, size_t n, const uint8_t **out, struct vfm_err *err)
{
	if (n > (size_t)(k->end - k->p))
		return bad_program(k, "the program is truncated", err);
	*out = k->p;
	k->p += n;
	return 0;
}

static int take_number(struct machine *k, int n, uint64_t *out, struct vfm_err *err)
{
	const uint8_t *p;

	TRY(take_bytes(k, (size_t)n, &p, err));
	for (*out = 0; n-- > 0;)
		*out = *out << 8 | p[n];
	return 0;
}

/* ---- values ---- */

static int push_int(struct machine *k, int bytes, bool is_signed, struct vfm_err *err)
{
	uint64_t v;

	TRY(take_number(k, bytes, &v, err));
	if (is_signed && bytes && bytes < 8 && v >> (8 * bytes - 1))
		v |= ~(uint64_t)0 << (8 * bytes);
	return push(k, (struct value){.kind = VALUE_INT, .i = (int64_t)v}, err);
}

static int push_text(struct machine *k, struct vfm_err *err)
{
	const uint8_t *p;
	uint64_t n;

	TRY(take_number(k, 4, &n, err));
	TRY(take_bytes(k, (size_t)n, &p, err));
	return push(k, (struct value){.kind = VALUE_TEXT, .n = (uint32_t)n, .p = p}, err);
}

/* Reads "MODULE\nNAME\n". */
static int push_name(struct machine *k, struct vfm_err *err)
{
	const uint8_t *begin = k->p, *mid = memchr(begin, '\n', (size_t)(k->end - begin)), *stop;
	char name[128];
	int len;

	stop = mid ? memchr(mid + 1, '\n', (size_t)(k->end - mid - 1)) : NULL;
	if (!stop)
		return bad_program(k, "the program is truncated", err);
	len = snprintf(name, sizeof(name), "%.*s %.*s", (int)(mid - begin > 60 ? 60 : mid - begin), (const char *)begin,
		(int)(stop - mid - 1 > 60 ? 60 : stop - mid - 1), (const char *)mid + 1);
	for (size_t i = 0; i < sizeof(known_names) / sizeof(*known_names); i++)
		if (len == (int)(stop - begin) && !strcmp(known_names[i].name, name)) {
			k->p = stop + 1;
			return push(k, (struct value){.kind = VALUE_NAME, .i = (int64_t)i}, err);
		}
	for (char *p = name; *p; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
	return vfm_fail(
		err, VFM_EUSAGE, "%s: data.pkl mentions '%s'; only tensors in dictionaries are read", k->file, name);
}

static int push_tuple(struct machine *k, size_t n, struct vfm_err *err)
{
	struct value *v;

	if (height(k) < n)
		return bad_program(k, "the stack is empty", err);
	v = new_value(k, n * sizeof(*v));
	k->n -= n;
	if (n)
		memcpy(v, k->stack + k->n, n * sizeof(*v));
	return push(k, (struct value){.kind = VALUE_TUPLE, .n = (uint32_t)n, .p = v}, err);
}

static int push_dict(struct machine *k, struct vfm_err *err)
{
	struct dict *d = new_value(k, sizeof(*d));

	d->next = k->dicts;
	k->dicts = d;
	return push(k, (struct value){.kind = VALUE_DICT, .p = d}, err);
}

/* Moves the n values on the top of the stack, keys and values in turn, into the dictionary under them. */
static int set_items(struct machine *k, size_t n, struct vfm_err *err)
{
	struct dict *d;

	if (n % 2 || !k->stack || height(k) < n + 1 || k->stack[k->n - n - 1].kind != VALUE_DICT)
		return bad_program(k, "no dictionary to set items of", err);
	d = (struct dict *)(uintptr_t)k->stack[k->n - n - 1].p;
	if (d->n + n / 2 > TENSORS_MAX)
		return bad_program(k, "too many items", err);
	grow_values(k, &d->v, &d->cap, 2 * d->n + n);
	for (size_t i = 0; i < n; i++) {
		d->v[2 * d->n + i] = k->stack[k->n - n + i];
		d->has_tensors = d->has_tensors || (i % 2 && d->v[2 * d->n + i].kind == VALUE_TENSOR);
	}
	d->n += n / 2;
	k->n -= n;
	return 0;
}

static int put_memo(struct machine *k, uint64_t at, struct vfm_err *err)
{
	if (at >= (size_t)(k->p - k->begin) || !height(k)) /* Python counts the values that it stores */
		return bad_program(k, "bad index of the memo", err);
	grow_values(k, &k->memo, &k->memo_cap, (size_t)at + 1);
	for (; k->n_memo <= at; k->n_memo++)
		k->memo[k->n_memo] = (struct value){0};
	k->memo[at] = k->stack[k->n - 1];
	return 0;
}

static int get_memo(struct machine *k, uint64_t at, struct vfm_err *err)
{
	return at < k->n_memo ? push(k, k->memo[at], err) : bad_program(k, "bad index of the memo", err);
}

/* ---- tensors ---- */

static bool is_text(const struct value *v, const char *text)
{
	return v->kind == VALUE_TEXT && v->n == strlen(text) && !memcmp(v->p, text, v->n);
}

/* Returns whether a value is a text that can be a name: short, without NUL. */
static bool is_key(const struct value *v)
{
	return v->kind == VALUE_TEXT && v->n <= KEY_MAX && !memchr(v->p, 0, v->n);
}

/* Copies a key that is valid UTF-8; NULL if it is none. */
static const char *copy_key(struct vfm_arena *arena, const struct value *v)
{
	json_t *s = is_key(v) ? json_stringn(v->p, v->n) : NULL;
	const char *copy = s ? vfm_arena_strdup(arena, json_string_value(s)) : NULL;

	json_decref(s);
	return copy;
}

/* ("storage", TYPE, KEY, LOCATION, ELEMENTS) */
static int push_storage(struct machine *k, struct vfm_err *err)
{
	const struct value *v;
	struct storage *s;
	struct value id;

	TRY(pop(k, &id, err));
	v = id.p;
	if (id.kind != VALUE_TUPLE || id.n != 5 || !is_text(&v[0], "storage") || v[1].kind != VALUE_NAME ||
		known_names[v[1].i].call != CALL_NONE || v[4].kind != VALUE_INT || v[4].i < 0)
		return bad_program(k, "no storage of tensors", err);
	if (!is_key(&v[2]))
		return bad_program(k, "bad key of a storage", err);
	s = new_value(k, sizeof(*s));
	*s = (struct storage){known_names[v[1].i].dtype, v[2], v[4].i};
	return push(k, (struct value){.kind = VALUE_STORAGE, .p = s}, err);
}

static bool is_contiguous(const struct pth_tensor *t, const struct value *stride)
{
	int64_t want = 1;

	for (int d = 0; d < t->ndim; d++)
		if (t->shape[d] == 0)
			return true;
	for (int d = t->ndim; d-- > 0;) {
		if (t->shape[d] != 1 && stride[d].i != want)
			return false;
		want *= t->shape[d];
	}
	return true;
}

/* Takes the shape of a tensor.  The fault of one that cannot be read is reported with its name. */
static int set_shape(struct machine *k, struct pth_tensor *t, const struct value *size, const struct value *stride,
	size_t n, struct vfm_err *err)
{
	for (size_t d = 0; d < n; d++)
		if (size[d].kind != VALUE_INT || stride[d].kind != VALUE_INT)
			return bad_program(k, "no tensor", err);
	if (n > VFM_NDIM_MAX) {
		t->fault = "of too many dimensions";
		return 0;
	}
	t->ndim = (int)n;
	for (size_t d = 0; d < n; d++)
		t->shape[d] = size[d].i;
	if (vfm_shape_numel(t->ndim, t->shape) < 0)
		t->fault = "with a bad shape";
	else if (!is_contiguous(t, stride))
		t->fault = "that is not contiguous (save .contiguous() ones)";
	return 0;
}

/* (STORAGE, OFFSET, SIZE, STRIDE, REQUIRES_GRAD, HOOKS) */
static int push_tensor(struct machine *k, const struct value *v, size_t n, struct vfm_err *err)
{
	struct pth_tensor *t;

	if (n < 4 || n > 7 || v[0].kind != VALUE_STORAGE || v[1].kind != VALUE_INT || v[2].kind != VALUE_TUPLE ||
		v[3].kind != VALUE_TUPLE || v[2].n != v[3].n || v[1].i < 0 || (n == 7 && v[6].kind != VALUE_NONE))
		return bad_program(k, "no tensor", err);
	t = new_value(k, sizeof(*t));
	*t = (struct pth_tensor){.storage = v[0].p, .at = k->p - k->begin, .offset = v[1].i};
	TRY(set_shape(k, t, v[2].p, v[3].p, v[2].n, err));
	return push(k, (struct value){.kind = VALUE_TENSOR, .p = t}, err);
}

static int run_call(struct machine *k, struct vfm_err *err)
{
	struct value args, fn;

	TRY(pop(k, &args, err));
	TRY(pop(k, &fn, err));
	if (args.kind != VALUE_TUPLE || fn.kind != VALUE_NAME)
		return bad_program(k, "a call of what is no function", err);
	switch (known_names[fn.i].call) {
	case CALL_DICT:
		return args.n == 0 ? push_dict(k, err) : bad_program(k, "arguments of OrderedDict", err);
	case CALL_TENSOR:
		return push_tensor(k, args.p, args.n, err);
	case CALL_PARAMETER:
		if (args.n != 3 || ((const struct value *)args.p)->kind != VALUE_TENSOR)
			return bad_program(k, "no parameter", err);
		return push(k, *(const struct value *)args.p, err);
	case CALL_NONE:
		break;
	}
	return bad_program(k, "a call of a type of storages", err);
}

/* The attributes of an OrderedDict (_metadata of a state_dict) say nothing of the tensors. */
static int drop_state(struct machine *k, struct vfm_err *err)
{
	struct value v;

	TRY(pop(k, &v, err));
	if (!height(k) || k->stack[k->n - 1].kind != VALUE_DICT)
		return bad_program(k, "the state of what is no dictionary", err);
	return 0;
}

/* ---- instructions ---- */

static void push_mark(struct machine *k)
{
	size_t had = k->mark_cap;

	vfm_grow(&k->mark, &k->mark_cap, k->n_marks + 1, sizeof(*k->mark));
	k->used += (k->mark_cap - had) * sizeof(*k->mark);
	k->mark[k->n_marks++] = k->n;
}

static int run_marked(struct machine *k, int op, struct vfm_err *err)
{
	size_t n = height(k);

	if (!k->n_marks)
		return bad_program(k, "no mark on the stack", err);
	k->n_marks--;
	return op == 't' ? push_tuple(k, n, err) : set_items(k, n, err);
}

static int unknown_instruction(const struct machine *k, int op, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EUSAGE,
		"%s: data.pkl has the instruction 0x%02x at byte %zd, which no dictionary of tensors needs", k->file,
		(unsigned)op, (ssize_t)(k->p - k->begin - 1));
}

/* Runs one instruction.  Names and codes: pickletools of Python. */
static int run_instruction(struct machine *k, int op, struct vfm_err *err)
{
	uint64_t v;

	switch (op) {
	case 'N': /* NONE */
		return push(k, (struct value){.kind = VALUE_NONE}, err);
	case 0x88: /* NEWTRUE */
	case 0x89: /* NEWFALSE */
		return push(k, (struct value){.kind = VALUE_BOOL, .i = op == 0x88}, err);
	case 'K': /* BININT1 */
		return push_int(k, 1, false, err);
	case 'M': /* BININT2 */
		return push_int(k, 2, false, err);
	case 'J': /* BININT */
		return push_int(k, 4, true, err);
	case 0x8a: /* LONG1 */
		TRY(take_number(k, 1, &v, err));
		return v <= 8 ? push_int(k, (int)v, true, err) : bad_program(k, "an integer of more than 8 bytes", err);
	case 'X': /* BINUNICODE */
		return push_text(k, err);
	case 'c': /* GLOBAL */
		return push_name(k, err);
	case '(': /* MARK */
		push_mark(k);
		return 0;
	case 't': /* TUPLE */
	case 'u': /* SETITEMS */
		return run_marked(k, op, err);
	case ')': /* EMPTY_TUPLE */
		return push_tuple(k, 0, err);
	case 0x85: /* TUPLE1 */
	case 0x86: /* TUPLE2 */
	case 0x87: /* TUPLE3 */
		return push_tuple(k, (size_t)op - 0x84, err);
	case '}': /* EMPTY_DICT */
		return push_dict(k, err);
	case 's': /* SETITEM */
		return set_items(k, 2, err);
	case 'q': /* BINPUT */
	case 'r': /* LONG_BINPUT */
		TRY(take_number(k, op == 'q' ? 1 : 4, &v, err));
		return put_memo(k, v, err);
	case 'h': /* BINGET */
	case 'j': /* LONG_BINGET */
		TRY(take_number(k, op == 'h' ? 1 : 4, &v, err));
		return get_memo(k, v, err);
	case 'Q': /* BINPERSID */
		return push_storage(k, err);
	case 'R': /* REDUCE */
		return run_call(k, err);
	case 'b': /* BUILD */
		return drop_state(k, err);
	default:
		return unknown_instruction(k, op, err);
	}
}

static int run_program(struct machine *k, struct value *result, struct vfm_err *err)
{
	const uint8_t *p;

	TRY(take_bytes(k, 2, &p, err));
	if (p[0] != 0x80 || p[1] != 2) /* PROTO */
		return bad_program(k, "no program of protocol 2", err);
	for (;;) {
		TRY(take_bytes(k, 1, &p, err));
		if (*p == '.') /* STOP */
			break;
		TRY(run_instruction(k, *p, err));
	}
	TRY(pop(k, result, err));
	return k->n || k->n_marks ? bad_program(k, "values are left on the stack", err) : 0;
}

static void machine_release(struct machine *k)
{
	for (struct dict *d = k->dicts; d; d = d->next)
		free(d->v);
	free(k->stack);
	free(k->memo);
	free(k->mark);
	vfm_arena_release(&k->arena);
}

/* ---- the file ---- */

struct pth {
	struct vfm_zip zip;
	struct vfm_st *st;
	int fd;
	const char *file;
	char *prefix; /* "archive/" */
};

static bool has_tensors(const struct value *v)
{
	return v->kind == VALUE_DICT && ((const struct dict *)v->p)->has_tensors;
}

/* Finds the dictionary of the tensors: the result, or the only one in it that has tensors. */
static int find_tensors(const struct value *result, const struct dict **out, const char *file, struct vfm_err *err)
{
	const struct dict *d = result->p;

	*out = NULL;
	if (result->kind != VALUE_DICT)
		return vfm_fail(err, VFM_EUSAGE, "%s: no dictionary of tensors", file);
	if (has_tensors(result)) {
		*out = d;
		return 0;
	}
	for (size_t i = 0; i < d->n; i++) {
		if (!has_tensors(&d->v[2 * i + 1]))
			continue;
		if (*out)
			return vfm_fail(err, VFM_EUSAGE, "%s: several dictionaries of tensors; save one of them", file);
		*out = d->v[2 * i + 1].p;
	}
	return *out ? 0 : vfm_fail(err, VFM_EUSAGE, "%s: no dictionary of tensors", file);
}

static int add_tensor(struct pth *x, const struct value *key, const struct value *v, struct vfm_err *err)
{
	struct vfm_st_tensor *t = &x->st->t[x->st->n];
	const char *name = copy_key(&x->st->arena, key);
	const struct vfm_zip_entry *e;
	const struct pth_tensor *src = v->p;
	int64_t numel;
	uint64_t off, es;
	char *path;

	if (!name)
		return vfm_fail(err, VFM_EUSAGE, "%s: a key of the dictionary is no name of a tensor", x->file);
	if (v->kind != VALUE_TENSOR)
		return vfm_fail(err, VFM_EUSAGE, "%s: '%.200s' is no tensor", x->file, name);
	if (src->fault)
		return vfm_fail(err, VFM_EUSAGE, "%s: data.pkl, byte %zd: a tensor %s: '%.200s'", x->file,
			(ssize_t)src->at, src->fault, name);
	path = vfm_strfmt("%sdata/%.*s", x->prefix, (int)src->storage->key.n, (const char *)src->storage->key.p);
	e = vfm_zip_find(&x->zip, path);
	free(path);
	if (!e)
		return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s': its values are missing", x->file, name);
	TRY(vfm_zip_data(&x->zip, x->fd, e, x->file, &off, err));
	es = vfm_dtype_size(src->storage->dtype);
	numel = vfm_shape_numel(src->ndim, src->shape);
	if (e->size / es != (uint64_t)src->storage->numel || e->size % es || src->offset > src->storage->numel ||
		numel > src->storage->numel - src->offset)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: tensor '%.200s': %lld elements from %lld on, but %llu bytes of values", x->file, name,
			(long long)numel, (long long)src->offset, (unsigned long long)e->size);
	*t = (struct vfm_st_tensor){.name = name, .dtype = src->storage->dtype, .ndim = src->ndim};
	memcpy(t->shape, src->shape, sizeof(t->shape));
	t->begin = off + (uint64_t)src->offset * es;
	t->end = t->begin + (uint64_t)numel * es;
	x->st->n++;
	return 0;
}

static int list_tensors(struct pth *x, const struct dict *d, size_t program, struct vfm_err *err)
{
	struct vfm_st *st = x->st;
	size_t keys = 0;

	st->t = vfm_calloc(d->n + 1, sizeof(*st->t));
	for (size_t i = 0; i < d->n; i++) {
		keys += d->v[2 * i].n;
		if (keys > program) /* distinct keys are distinct parts of it; copies of one may be many times larger */
			return vfm_fail(err, VFM_EUSAGE, "%s: a key of the dictionary occurs twice", x->file);
		TRY(add_tensor(x, &d->v[2 * i], &d->v[2 * i + 1], err));
	}
	vfm_st_index(st);
	for (size_t i = 1; i < st->n; i++)
		if (!strcmp(st->by_name[i - 1]->name, st->by_name[i]->name))
			return vfm_fail(
				err, VFM_EUSAGE, "%s: tensor '%.200s' occurs twice", x->file, st->by_name[i]->name);
	return 0;
}

/* Finds PREFIX/data.pkl, and checks that the values are little-endian. */
static int find_program(struct pth *x, const struct vfm_zip_entry **program, struct vfm_err *err)
{
	const struct vfm_zip_entry *order;
	uint64_t off;
	char *path, text[8];
	int rc = 0;

	*program = NULL;
	for (size_t i = 0; i < x->zip.n && !*program; i++) {
		const char *slash = strchr(x->zip.e[i].name, '/');

		if (slash && !strcmp(slash, "/data.pkl")) {
			*program = &x->zip.e[i];
			x->prefix = vfm_strfmt("%.*s", (int)(slash + 1 - x->zip.e[i].name), x->zip.e[i].name);
		}
	}
	if (!*program)
		return vfm_fail(
			err, VFM_EUSAGE, "%s: a zip archive without data.pkl: not written by torch.save", x->file);
	if ((*program)->size > PROGRAM_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: data.pkl has more than %d bytes", x->file, PROGRAM_MAX);
	path = vfm_strfmt("%sbyteorder", x->prefix);
	order = vfm_zip_find(&x->zip, path);
	free(path);
	if (order && order->size == 6) {
		TRY(vfm_zip_data(&x->zip, x->fd, order, x->file, &off, err));
		rc = vfm_full_pread(x->fd, text, 6, off, x->file, err);
	}
	if (!rc && order && (order->size != 6 || memcmp(text, "little", 6) != 0))
		rc = vfm_fail(err, VFM_EUSAGE, "%s: the values are not little-endian", x->file);
	return rc;
}

static int read_program(struct pth *x, struct vfm_err *err)
{
	const struct vfm_zip_entry *program;
	struct machine k = {.file = x->file};
	const struct dict *d;
	struct value result;
	uint8_t *text;
	uint64_t off;
	int rc;

	TRY(find_program(x, &program, err));
	TRY(vfm_zip_data(&x->zip, x->fd, program, x->file, &off, err));
	text = vfm_malloc((size_t)program->size + 1);
	rc = vfm_full_pread(x->fd, text, (size_t)program->size, off, x->file, err);
	k.p = k.begin = text;
	k.end = text + program->size;
	if (!rc)
		rc = run_program(&k, &result, err);
	if (!rc)
		rc = find_tensors(&result, &d, x->file, err);
	if (!rc)
		rc = list_tensors(x, d, (size_t)program->size, err);
	machine_release(&k);
	free(text);
	return rc;
}

bool vfm_pth_is(const void *head, size_t len)
{
	static const char safetensors[5] = {0, 0, 0, 0, '{'};

	return len >= 9 && !memcmp(head, "PK\003\004", 4) && memcmp((const char *)head + 4, safetensors, 5) != 0;
}

int vfm_pth_open(struct vfm_st *st, int fd, uint64_t file_bytes, const char *name, struct vfm_err *err)
{
	struct pth x = {.st = st, .fd = fd, .file = name};
	int rc;

	*st = (struct vfm_st){.bytes = file_bytes};
	TRY(vfm_zip_open(&x.zip, fd, file_bytes, name, err));
	rc = read_program(&x, err);
	vfm_zip_release(&x.zip);
	free(x.prefix);
	if (rc < 0)
		vfm_st_release(st);
	return rc;
}
