#include "curate/table/thrift.h"

enum { MAX_DEPTH = 32 };

/* Types of the compact protocol.  A bool within a struct has its value as its type; within a list it is a byte. */
enum {
	T_TRUE = 1,
	T_FALSE = 2,
	T_BYTE = 3,
	T_I16 = 4,
	T_I32 = 5,
	T_I64 = 6,
	T_DOUBLE = 7,
	T_BINARY = 8,
	T_LIST = 9,
	T_SET = 10,
	T_MAP = 11,
	T_STRUCT = 12,
	T_UUID = 13,
	IN_LIST = -1, /* vfm_thrift_field.id of an element of a list */
};

static size_t thrift_left(const struct vfm_thrift *t)
{
	return t->bad ? 0 : (size_t)(t->end - t->p);
}

static uint8_t thrift_byte(struct vfm_thrift *t)
{
	if (!thrift_left(t)) {
		t->bad = true;
		return 0;
	}
	return *t->p++;
}

static void thrift_advance(struct vfm_thrift *t, uint64_t n)
{
	if (n > thrift_left(t))
		t->bad = true;
	else
		t->p += n;
}

uint64_t vfm_thrift_varint(struct vfm_thrift *t)
{
	uint64_t v = 0;

	for (int shift = 0; shift < 64; shift += 7) {
		uint8_t b = thrift_byte(t);

		v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80))
			return t->bad ? 0 : v;
	}
	t->bad = true;
	return 0;
}

int64_t vfm_thrift_zigzag(struct vfm_thrift *t)
{
	uint64_t v = vfm_thrift_varint(t);

	return (int64_t)((v >> 1) ^ (0 - (v & 1)));
}

bool vfm_thrift_field(struct vfm_thrift *t, struct vfm_thrift_field *f)
{
	uint8_t head = thrift_byte(t);
	int64_t id;

	if (t->bad || !head)
		return false;
	id = head >> 4 ? f->id + (head >> 4) : vfm_thrift_zigzag(t);
	if (t->bad || id <= 0 || id > INT16_MAX) {
		t->bad = true;
		return false;
	}
	f->id = (int)id;
	f->type = head & 15;
	return true;
}

int64_t vfm_thrift_int(struct vfm_thrift *t, const struct vfm_thrift_field *f)
{
	if (f->type == T_BYTE)
		return (int8_t)thrift_byte(t);
	if (f->type == T_I16 || f->type == T_I32 || f->type == T_I64)
		return vfm_thrift_zigzag(t);
	t->bad = true;
	return 0;
}

bool vfm_thrift_bool(struct vfm_thrift *t, const struct vfm_thrift_field *f)
{
	if (f->type != T_TRUE && f->type != T_FALSE)
		t->bad = true;
	return !t->bad && f->type == T_TRUE;
}

const char *vfm_thrift_text(struct vfm_thrift *t, const struct vfm_thrift_field *f, size_t *len)
{
	const uint8_t *start;
	uint64_t n;

	*len = 0;
	if (f->type != T_BINARY) {
		t->bad = true;
		return NULL;
	}
	n = vfm_thrift_varint(t);
	start = t->p;
	thrift_advance(t, n);
	if (t->bad)
		return NULL;
	*len = (size_t)n;
	return (const char *)start;
}

bool vfm_thrift_struct(struct vfm_thrift *t, const struct vfm_thrift_field *f)
{
	if (f->type != T_STRUCT)
		t->bad = true;
	return !t->bad;
}

size_t vfm_thrift_list(struct vfm_thrift *t, const struct vfm_thrift_field *f, struct vfm_thrift_field *element)
{
	uint8_t head;
	uint64_t n;

	*element = (struct vfm_thrift_field){.id = IN_LIST};
	if (f->type != T_LIST && f->type != T_SET) {
		t->bad = true;
		return 0;
	}
	head = thrift_byte(t);
	n = head >> 4 == 15 ? vfm_thrift_varint(t) : head >> 4;
	element->type = head & 15;
	if (n > thrift_left(t)) /* each element has at least a byte */
		t->bad = true;
	return t->bad ? 0 : (size_t)n;
}

static void skip_map(struct vfm_thrift *t)
{
	uint64_t n = vfm_thrift_varint(t);
	struct vfm_thrift_field key = {.id = IN_LIST}, value = {.id = IN_LIST};
	uint8_t types;

	if (!n)
		return;
	types = thrift_byte(t);
	key.type = types >> 4;
	value.type = types & 15;
	if (n > thrift_left(t))
		t->bad = true;
	for (uint64_t i = 0; i < n && !t->bad; i++) {
		vfm_thrift_skip(t, &key);
		vfm_thrift_skip(t, &value);
	}
}

static void skip_nested(struct vfm_thrift *t, const struct vfm_thrift_field *f)
{
	struct vfm_thrift_field inner = {0};
	size_t n;

	if (++t->depth > MAX_DEPTH)
		t->bad = true;
	if (f->type == T_STRUCT) {
		while (vfm_thrift_field(t, &inner))
			vfm_thrift_skip(t, &inner);
	} else if (f->type == T_MAP) {
		skip_map(t);
	} else {
		n = vfm_thrift_list(t, f, &inner);
		for (size_t i = 0; i < n && !t->bad; i++)
			vfm_thrift_skip(t, &inner);
	}
	t->depth--;
}

void vfm_thrift_skip(struct vfm_thrift *t, const struct vfm_thrift_field *f)
{
	size_t len;

	switch (f->type) {
	case T_TRUE:
	case T_FALSE:
		thrift_advance(t, f->id == IN_LIST);
		break;
	case T_BYTE:
		thrift_advance(t, 1);
		break;
	case T_I16:
	case T_I32:
	case T_I64:
		vfm_thrift_varint(t);
		break;
	case T_DOUBLE:
		thrift_advance(t, 8);
		break;
	case T_UUID:
		thrift_advance(t, 16);
		break;
	case T_BINARY:
		vfm_thrift_text(t, f, &len);
		break;
	case T_LIST:
	case T_SET:
	case T_MAP:
	case T_STRUCT:
		skip_nested(t, f);
		break;
	default:
		t->bad = true;
	}
}
