/* What Python sees of the kernel. */

#include "kernel.h"

#define METHOD(name) \
    {#name, (PyCFunction)(void (*)(void))kernel_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    METHOD(reply), METHOD(parse), METHOD(encode), METHOD(probe),
    METHOD(lattice), METHOD(balance), METHOD(cut), METHOD(compare),
    METHOD(fill), METHOD(sift), METHOD(shorten), METHOD(insert), METHOD(peel), METHOD(find), METHOD(gather),
    METHOD(tally), METHOD(survey_slices),
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    return PyModule_AddIntConstant(module, "VERSION", KERNEL_VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "The hot places of `reconcile` in compiled code; see `reconcile.kernel`.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&definition);
}
