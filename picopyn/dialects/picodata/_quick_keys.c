/* What quick_keys.py has in Python: the bucket of a key that is one integer or one text.
 *
 * Each function that is handed out is a builtin one, bound to the tuple (position, bucket count, otherwise): no object of
 * ours, and a call costs no frame. Whatever is no plain value that can be sent is left to `otherwise`.
 *
 * Source: picodata-protocol.md section 6 (bytes of integers and texts, seed, modulus); MurmurHash3_x86_32 is in the
 * public domain. Only the limited API is used, so one build serves every later Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define SEED 13

static uint32_t
rotated(uint32_t word, int bits)
{
    return (word << bits) | (word >> (32 - bits));
}

static uint32_t
mixed(uint32_t word)
{
    return rotated(word * 0xcc9e2d51u, 15) * 0x1b873593u;
}

/* MurmurHash3_x86_32. */
static uint32_t
hash_of(const unsigned char *bytes, size_t size)
{
    uint32_t hash = SEED, rest = 0;
    size_t at = 0;

    for (; size - at >= 4; at += 4) {
        uint32_t word = bytes[at] | (uint32_t)bytes[at + 1] << 8 | (uint32_t)bytes[at + 2] << 16
                        | (uint32_t)bytes[at + 3] << 24;
        hash = rotated(hash ^ mixed(word), 13) * 5 + 0xe6546b64u;
    }
    for (size_t left = size - at; left > 0; left--) {
        rest = rest << 8 | bytes[at + left - 1];
    }
    if (at < size) {
        hash ^= mixed(rest);
    }
    hash ^= (uint32_t)size;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

/* Write the shortest MessagePack integer; returns its size. */
static size_t
packed(long long value, unsigned char *bytes)
{
    uint64_t bits = (uint64_t)value;
    int power; /* it is followed by 2 ** power bytes */

    if (value >= -32 && value < 128) {
        bytes[0] = (unsigned char)bits;
        return 1;
    }
    if (value >= 0) {
        power = value <= UINT8_MAX ? 0 : value <= UINT16_MAX ? 1 : value <= UINT32_MAX ? 2 : 3;
        bytes[0] = (unsigned char)(0xcc + power);
    }
    else {
        power = value >= INT8_MIN ? 0 : value >= INT16_MIN ? 1 : value >= INT32_MIN ? 2 : 3;
        bytes[0] = (unsigned char)(0xd0 + power);
    }
    size_t size = (size_t)1 << power;
    for (size_t at = size; at > 0; at--) {
        bytes[at] = (unsigned char)bits;
        bits >>= 8;
    }
    return size + 1;
}

/* The argument that `bound` means, borrowed; NULL without an exception where there is none. */
static PyObject *
argument(PyObject *bound, PyObject *args)
{
    if (!PyTuple_Check(args)) {
        return NULL;
    }
    Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GetItem(bound, 0));
    return position < PyTuple_Size(args) ? PyTuple_GetItem(args, position) : NULL;
}

static PyObject *
bucket(PyObject *bound, const unsigned char *bytes, size_t size)
{
    size_t count = PyLong_AsSize_t(PyTuple_GetItem(bound, 1));
    return PyLong_FromSize_t(hash_of(bytes, size) % count + 1);
}

static PyObject *
otherwise(PyObject *bound, PyObject *args)
{
    return PyObject_CallFunctionObjArgs(PyTuple_GetItem(bound, 2), args, NULL);
}

static PyObject *
key_of_int(PyObject *bound, PyObject *args)
{
    PyObject *value = argument(bound, args);

    if (value != NULL && PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (!overflow) {
            unsigned char bytes[9];
            return bucket(bound, bytes, packed(number, bytes));
        }
    }
    return otherwise(bound, args);
}

static PyObject *
key_of_text(PyObject *bound, PyObject *args)
{
    PyObject *value = argument(bound, args);

    if (value != NULL && PyUnicode_CheckExact(value)) {
        Py_ssize_t size;
        const char *bytes = PyUnicode_AsUTF8AndSize(value, &size);
        if (bytes != NULL) {
            return bucket(bound, (const unsigned char *)bytes, (size_t)size);
        }
        PyErr_Clear(); /* half a surrogate pair, or no memory for a copy */
    }
    return otherwise(bound, args);
}

/* Bind a function to its position, its number of buckets, and what does for the rest. */
static PyObject *
bound_to(PyMethodDef *function, PyObject *words)
{
    Py_ssize_t position, count;
    PyObject *rest;

    if (!PyArg_ParseTuple(words, "nnO:key", &position, &count, &rest)) {
        return NULL;
    }
    if (position < 0 || count < 1 || !PyCallable_Check(rest)) {
        PyErr_SetString(PyExc_ValueError, "takes a position from 0, a number of buckets from 1, and a function");
        return NULL;
    }
    PyObject *bound = Py_BuildValue("nnO", position, count, rest);
    if (bound == NULL) {
        return NULL;
    }
    PyObject *key = PyCFunction_NewEx(function, bound, NULL);
    Py_DECREF(bound);
    return key;
}

static PyMethodDef INT_KEY = {"int_key", key_of_int, METH_O, "The bucket of an integer among a call's arguments."};
static PyMethodDef TEXT_KEY = {"text_key", key_of_text, METH_O, "The bucket of a text among a call's arguments."};

static PyObject *
int_key(PyObject *module, PyObject *words)
{
    return bound_to(&INT_KEY, words);
}

static PyObject *
text_key(PyObject *module, PyObject *words)
{
    return bound_to(&TEXT_KEY, words);
}

static PyMethodDef FUNCTIONS[] = {
    {"int_key", int_key, METH_VARARGS, "See quick_keys."},
    {"text_key", text_key, METH_VARARGS, "See quick_keys."},
    {NULL},
};

static PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_quick_keys", "What quick_keys has, in C.", 0, FUNCTIONS, SLOTS,
};

PyMODINIT_FUNC
PyInit__quick_keys(void)
{
    return PyModuleDef_Init(&MODULE);
}
