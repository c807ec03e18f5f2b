//! `#[derive(Module)]`: a struct is the list of its parts.

use proc_macro::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Index, Path, Result};

/// Implements `Module` for a struct by visiting its fields in order, each under its name; the fields
/// of a tuple struct are called by their positions. Enums are refused: which of their parts exist
/// could change, and with it the names.
///
/// The arguments of a generic struct must be modules.
///
/// - `#[module(skip)]` on a field leaves it out: for configuration that is no module.
/// - `#[module(flatten)]` on a field visits it without its name, as if its parts stood here.
/// - `#[module(crate = path)]` on the struct says where `Module` lives; `::thalweg` unless given.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    implementation(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn implementation(input: &DeriveInput) -> Result<proc_macro2::TokenStream> {
    let Data::Struct(data) = &input.data else {
        let why = "Module can be derived for structs only; for an enum, write `visit` by hand";
        return Err(Error::new(input.ident.span(), why));
    };
    let home = home(input)?;
    let mut visits = Vec::new();
    for (i, field) in data.fields.iter().enumerate() {
        let member = match (&field.ident, &data.fields) {
            (Some(name), Fields::Named(_)) => quote!(#name),
            _ => {
                let i = Index::from(i);
                quote!(#i)
            }
        };
        let name = field.ident.as_ref().map_or_else(|| i.to_string(), |n| n.to_string());
        // `r#type` is called `type`.
        let name = name.trim_start_matches("r#");
        let span = field.ty.span();
        match how(field)? {
            How::Named => visits.push(quote_spanned!(span=> visitor.part(#name, &self.#member);)),
            How::Flat => visits.push(quote_spanned!(span=> #home::Module::visit(&self.#member, visitor);)),
            How::Skipped => {}
        }
    }
    let ident = &input.ident;
    let mut bounded = input.generics.clone();
    bounded.type_params_mut().for_each(|p| p.bounds.push(syn::parse_quote!(#home::Module)));
    let (generics, arguments, bounds) = bounded.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #generics #home::Module for #ident #arguments #bounds {
            fn visit(&self, visitor: &mut #home::Visitor<'_>) {
                let _ = &visitor;
                #(#visits)*
            }
        }
    })
}

enum How {
    Named,
    Flat,
    Skipped,
}

fn how(field: &syn::Field) -> Result<How> {
    let mut how = How::Named;
    for attribute in field.attrs.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("skip") {
                how = How::Skipped;
            } else if meta.path.is_ident("flatten") {
                how = How::Flat;
            } else {
                return Err(meta.error("a field takes `skip` or `flatten`"));
            }
            Ok(())
        })?;
    }
    Ok(how)
}

/// Where `Module` lives.
fn home(input: &DeriveInput) -> Result<Path> {
    let mut home: Path = syn::parse_quote!(::thalweg);
    for attribute in input.attrs.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("a struct takes `crate = path`"));
            }
            home = meta.value()?.call(Path::parse_mod_style)?;
            Ok(())
        })?;
    }
    Ok(home)
}
